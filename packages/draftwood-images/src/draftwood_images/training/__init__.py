"""Training of models of pictures: pictures by name, autoencoder, transformer, classifier."""
