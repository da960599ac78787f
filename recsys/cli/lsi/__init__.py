"""`recsys lsi`: latent semantic indexing of documents."""
