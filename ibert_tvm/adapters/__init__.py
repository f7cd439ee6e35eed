"""`Encoder` as other packages want their models: one file for each, which imports that package.

    from ibert_tvm.adapters.sentence_transformers import IbertModule
    from ibert_tvm.adapters.transformers import pipeline
    from ibert_tvm.adapters.langchain import IbertEmbeddings
    from ibert_tvm.adapters.llama_index import IbertEmbedding

Importing one of them without the package that it is for is a `MissingExtraError`.
"""
