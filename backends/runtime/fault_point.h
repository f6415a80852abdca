/* SPDX-License-Identifier: Apache-2.0 */

/*
 * fault_point: places at which a program can be told to die as by kill -9, so that tests show what
 * a crash there leaves behind. SAMOVAR_FAULT_POINT=<name>[:<count>] in the environment: the process
 * kills itself at that point, the count-th time it comes there (1). Without the variable a point
 * costs one read of a variable. Any thread, after fault_point_init().
 */
#ifndef BACKENDS_RUNTIME_FAULT_POINT_H
#define BACKENDS_RUNTIME_FAULT_POINT_H

#include "backends/runtime/must_check.h"

/* row(constant, name): in the order in which a block comes to them. */
#define FAULT_POINT_ROWS(row)                                                                      \
    row(FAULT_SAVE_COPIED, "save-copied")         /* payload in CPU memory, no header */           \
        row(FAULT_SAVE_SEALED, "save-sealed")     /* header made, not in the index */              \
        row(FAULT_SAVE_INDEXED, "save-indexed")   /* in the index, nobody told */                  \
        row(FAULT_SAVE_REPORTED, "save-reported") /* told, engine not answered */                  \
        row(FAULT_DEMOTE_WRITTEN,                                                                  \
            "demote-written")                     /* header and payload on the SSD, not listed */  \
        row(FAULT_DEMOTE_LISTED, "demote-listed") /* listed, not in the index */                   \
        row(FAULT_DEMOTE_INDEXED, "demote-indexed") /* in the index, nobody told */                \
        row(FAULT_WITHDRAW_TOLD, "withdraw-told")   /* told that it goes, still in the index */    \
        row(FAULT_WITHDRAW_INDEX, "withdraw-index") /* out of the index, slot not free */          \
        row(FAULT_HOLD_TAKEN, "hold-taken")         /* lease taken, engine not answered */         \
        row(FAULT_LOAD_MIDWAY, "load-midway")       /* some pages in the engine, others not */     \
        row(FAULT_LOAD_DONE, "load-done")           /* all pages there, engine not answered */     \
        row(FAULT_CLEAR_TOLD, "clear-told")         /* all withdrawn, on the SSD as before */      \
        row(FAULT_CLEAR_DURABLE, "clear-durable")   /* a restart finds none, engine not answered */

#define FAULT_POINT_CONSTANT(constant, name) constant,
enum fault_point { FAULT_POINT_ROWS(FAULT_POINT_CONSTANT) FAULT_POINT_COUNT };
#undef FAULT_POINT_CONSTANT

/* Reads the environment. -EINVAL: the variable names no point; the program should not start. */
MUST_CHECK int fault_point_init(void);

/* Does not return where the process was told to die here. */
void fault_point_pass(enum fault_point point);

const char *fault_point_name(enum fault_point point);

#endif
