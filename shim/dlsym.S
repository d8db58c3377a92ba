/*
 * dlsym.S - our dlsym(): asks the filter in lookup.c, and where that has nothing to say goes on to the real one by a
 * jump, with registers, stack and return address as they came. So the real one sees its true caller, and RTLD_NEXT and
 * the caller's own search scope mean what they should.
 *
 * struct bsg_lookup_answer bsg_lookup_filter(void *handle, const char *name, const void *caller): two words in two
 * registers; the second says that the first is the answer. bsg_lookup_real_dlsym is set once the filter has returned.
 */

#if defined(__x86_64__)

#define FEATURE_AND 0xc0000002 /* GNU_PROPERTY_X86_FEATURE_1_AND */
#define FEATURES 3             /* IBT, SHSTK */

        .text
        .globl  dlsym
        .type   dlsym, @function
        .p2align 4
dlsym:
        .cfi_startproc
        endbr64
        pushq   %rdi
        .cfi_adjust_cfa_offset 8
        pushq   %rsi
        .cfi_adjust_cfa_offset 8
        subq    $8, %rsp                /* the callee wants the stack aligned to 16 */
        .cfi_adjust_cfa_offset 8
        movq    24(%rsp), %rdx          /* our return address */
        call    bsg_lookup_filter
        addq    $8, %rsp
        .cfi_adjust_cfa_offset -8
        popq    %rsi
        .cfi_adjust_cfa_offset -8
        popq    %rdi
        .cfi_adjust_cfa_offset -8
        testq   %rdx, %rdx
        jnz     1f
        jmp     *bsg_lookup_real_dlsym(%rip)
1:
        ret
        .cfi_endproc
        .size   dlsym, . - dlsym

#elif defined(__aarch64__)

#define FEATURE_AND 0xc0000000 /* GNU_PROPERTY_AARCH64_FEATURE_1_AND */
#define FEATURES 1             /* BTI */

        .text
        .globl  dlsym
        .type   dlsym, %function
        .p2align 4
dlsym:
        .cfi_startproc
        hint    #34                     /* bti c, also for assemblers and machines that do not know it */
        stp     x29, x30, [sp, #-32]!
        .cfi_def_cfa_offset 32
        .cfi_offset x29, -32
        .cfi_offset x30, -24
        mov     x29, sp
        stp     x0, x1, [sp, #16]
        mov     x2, x30
        bl      bsg_lookup_filter
        mov     x16, x0
        mov     x17, x1
        ldp     x0, x1, [sp, #16]
        ldp     x29, x30, [sp], #32
        .cfi_restore x30
        .cfi_restore x29
        .cfi_def_cfa_offset 0
        cbnz    x17, 1f
        adrp    x16, bsg_lookup_real_dlsym
        ldr     x16, [x16, :lo12:bsg_lookup_real_dlsym]
        br      x16                     /* through x16, as a landing pad of "bti c" allows */
1:
        mov     x0, x16
        ret
        .cfi_endproc
        .size   dlsym, . - dlsym

#else
#error "bsguard knows x86-64 and aarch64"
#endif

        .section .note.gnu.property, "a"
        .p2align 3
        .long   4                       /* length of the name */
        .long   16                      /* length of the rest */
        .long   5                       /* NT_GNU_PROPERTY_TYPE_0 */
        .asciz  "GNU"
        .long   FEATURE_AND
        .long   4
        .long   FEATURES
        .long   0

#if defined(__aarch64__)
        .section .note.GNU-stack, "", %progbits
#else
        .section .note.GNU-stack, "", @progbits
#endif
