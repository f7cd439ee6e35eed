    .section .ibert.metadata,"a",%progbits
    .globl ibert_metadata
    .type ibert_metadata, %object
ibert_metadata:
    .incbin "metadata.json"
    .size ibert_metadata, . - ibert_metadata
    .section .note.GNU-stack,"",%progbits
