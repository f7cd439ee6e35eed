/* What the start-up code offers to the program. */
#ifndef BOARD_H
#define BOARD_H

#include <stdint.h>

/* Most bytes that the stack has held since reset. */
uint32_t board_stack_used(void);

/* Exit status after a fault; the reason has been printed. */
enum { BOARD_FAULT = 70 };

#endif
