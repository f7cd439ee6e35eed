/* Weights of a package that the program gives an address for (compile --external-weights). Here the
 * linker finds a place for them; on a board they may be in memory-mapped flash of their own, or have
 * been copied to external RAM: main.c then passes that address. */
    .section .ibert.weights.external,"a",%progbits
    .balign 16
    .globl external_weights
external_weights:
    .incbin "ibert_weights.bin"
