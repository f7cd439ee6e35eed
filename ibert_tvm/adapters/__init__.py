"""Adapters: `Encoder` in the interfaces of other packages, one file each.

    from ibert_tvm.adapters.sentence_transformers import IbertModule
    from ibert_tvm.adapters.transformers import pipeline
    from ibert_tvm.adapters.langchain import IbertEmbeddings
    from ibert_tvm.adapters.llama_index import IbertEmbedding

Importing an adapter without its package raises `MissingExtraError`.
"""
