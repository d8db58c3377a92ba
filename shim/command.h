/* command.h - what this process is called in files: its script, or its program. */
#ifndef BSG_SHIM_COMMAND_H
#define BSG_SHIM_COMMAND_H

#include <stddef.h>
#include <stdint.h>

/* "train.py" of `python -u train.py --epochs 3`, "module" of `python -m module`, else the program's own name. */
void bsg_command_name(char *out, size_t room);

/* A number for the working folder, the script and all arguments: the same for the same job started again. */
uint64_t bsg_command_hash(void);

#endif
