"""Parts of draftwood in other engines: one file per engine."""
