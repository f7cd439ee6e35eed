    .text
    .global _start, work
    .type _start, %function
    .type work, %function
_start:
    bl work
    mov x8, #93
    mov x0, #0
    svc #0
work:
    mov x1, #7
    movi v0.4s, #0
1:  fadd v0.4s, v0.4s, v0.4s
    sdot v1.4s, v2.16b, v3.16b
    smmla v1.4s, v2.16b, v3.16b
    fmov w2, s0
    subs x1, x1, #1
    b.ne 1b
    ret
