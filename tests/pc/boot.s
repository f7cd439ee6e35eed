/* The whole ROM of the emulated PC: from the reset vector to 64-bit code with AVX-512 switched on.
 *
 * It stands where a BIOS would, from 0xf0000 on. Memory below 0x10000 holds page tables, the stack
 * lies below 0x90000, and the program of machine.c starts at 0x100000.
 */
        .set    ROM, 0xf0000
        .set    PROGRAM, 0x100000
        .set    FAULT, 0x100010
        .set    STACK, 0x8fff8                  /* as after a call: 8 below a multiple of 16 */
        .set    BLOCK, 0x20000
        .set    VIDEO, 0xa0000
        .set    END, 0x20000000                 /* 512 MiB, as machine.py configures */

        .code16
        .section .text
start:  cli
        lgdtl   %cs:gdt_descriptor - start
        movl    $0x11, %eax                     /* CR0: protected mode */
        movl    %eax, %cr0
        ljmpl   $8, $ROM + protected - start

        .code32
protected:
        movl    $16, %eax
        movl    %eax, %ds
        movl    %eax, %es
        movl    %eax, %ss
        /* The emulator takes host memory for a block when it is first touched, and has put the
         * image into host memory in one piece: blocks are touched in the order of the image. There
         * is none where video memory and ROM lie. */
        xorl    %esi, %esi
touch:  movb    (%esi), %al
        addl    $BLOCK, %esi
        cmpl    $VIDEO, %esi
        jne     0f
        movl    $PROGRAM, %esi
0:      cmpl    $END, %esi
        jne     touch
        /* The first 2 GiB where they are, in two pages of 1 GiB. */
        movl    $0x2003, 0x1000
        movl    $0x00000083, 0x2000
        movl    $0x40000083, 0x2008
        movl    $0x1000, %eax
        movl    %eax, %cr3
        movl    $0x40620, %eax                  /* CR4: PAE, OSFXSR, OSXMMEXCPT, OSXSAVE */
        movl    %eax, %cr4
        movl    $0xc0000080, %ecx               /* EFER: 64-bit mode */
        movl    $0x100, %eax
        xorl    %edx, %edx
        wrmsr
        movl    $0x80000033, %eax               /* CR0: paging too */
        movl    %eax, %cr0
        ljmpl   $24, $ROM + long_mode - start

        .code64
long_mode:
        lidt    ROM + idt_descriptor - start
        xorl    %ecx, %ecx
        movl    $0xe7, %eax                     /* XCR0: x87, SSE, AVX and AVX-512 registers */
        xorl    %edx, %edx
        xsetbv
        movl    $STACK, %esp
        movl    $PROGRAM, %eax
        jmp     *%rax

/* An exception goes to the program with its number, and does not return. */
        .altmacro
        .macro  handler number
handler_\number:
        pushq   $\number
        jmp     raise
        .endm
        .macro  gate number
        .word   handler_\number - start, 24, 0x8e00, ROM >> 16
        .quad   0
        .endm
        .set    vector, 0
        .rept   32
        handler %vector
        .set    vector, vector + 1
        .endr
raise:  popq    %rdi
        movl    $STACK, %esp
        movl    $FAULT, %eax
        jmp     *%rax

        .balign 16
idt:    .set    vector, 0
        .rept   32
        gate    %vector
        .set    vector, vector + 1
        .endr
idt_descriptor:
        .word   idt_descriptor - idt - 1
        .quad   ROM + idt - start
        .balign 8
gdt:    .quad   0, 0x00cf9a000000ffff, 0x00cf92000000ffff, 0x00af9a000000ffff
gdt_descriptor:
        .word   gdt_descriptor - gdt - 1
        .long   ROM + gdt - start

        .org    0xfff0                          /* the reset vector */
        .code16
        ljmp    $ROM >> 4, $0
        .org    0xffff
        .byte   0
