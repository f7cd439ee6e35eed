    .section .ibert.weights,"a",%progbits
    .balign 4096
    .globl ibert_weights
    .type ibert_weights, %object
ibert_weights:
    .incbin "weights.bin"
.Lend:
    .size ibert_weights, . - ibert_weights
    .globl ibert_weights_size
    .type ibert_weights_size, %object
    .balign 8
ibert_weights_size:
    .quad .Lend - ibert_weights
    .size ibert_weights_size, 8
