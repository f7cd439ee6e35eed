    .syntax unified
    .thumb
    .section .vectors, "a"
    .word 0x20010000
    .word reset
    .text
    .global reset, work, helper, again, first, last
    .thumb_func
    .type reset, %function
reset:
    bl work
    bl again
    bl again
    movs r0, #0x20
    ldr r1, =parameters
    bkpt 0xab
    b .
    .align 2
parameters:
    .word 0x20026, 0
    .ltorg

    .thumb_func
    .type work, %function
work:
    push {r4, lr}
first:
    movw r4, #1000
1:  subs r4, r4, #1
    bne 1b
last:
    bl helper
    pop {r4, pc}

    .thumb_func
    .type helper, %function
helper:
    nop
    bx lr

    .thumb_func
    .type again, %function
again:                      @ a loop to its own first instruction, and a conditional call
    subs r5, r5, #1
    bpl again
    it eq
    bleq helper
    mov r5, #2
    b helper
