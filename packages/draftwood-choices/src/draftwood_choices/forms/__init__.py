"""Small forms: methods about latent trees and rules, each an example that runs in seconds."""
