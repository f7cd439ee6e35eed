"""Adapters: `Encoder` in the interfaces of other packages, one file each.

    from ibert_tvm.adapters.sentence_transformers import IbertModule
    from ibert_tvm.adapters.transformers import pipeline
    from ibert_tvm.adapters.langchain import IbertEmbeddings
    from ibert_tvm.adapters.llama_index import IbertEmbedding
    from ibert_tvm.adapters.haystack import IbertDocumentEmbedder, IbertTextEmbedder
    from ibert_tvm.adapters.mteb import IbertEncoder

Importing an adapter without its package raises `MissingExtraError`.
"""
