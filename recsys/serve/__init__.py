"""Models over HTTP and as a page: the service, its answers, and the page to explore a model."""
