"""Parts of the documents that are made of the code: ``python -m docs.generated`` writes them anew."""
