/* SPDX-License-Identifier: Apache-2.0 */

/*
 * option_value: the text form of one option's value: reads and writes it, says its range. Pure.
 */
#ifndef BACKENDS_RUNTIME_OPTION_VALUE_H
#define BACKENDS_RUNTIME_OPTION_VALUE_H

#include "backends/runtime/buf.h"
#include "backends/runtime/option.h"

/* Why a value cannot be taken. */
struct option_complaint {
    char what[192];   /* behind the value: "is out of range" */
    char advice[384]; /* what to write instead */
};

/*
 * Reads text as a number of the row: INTEGER, DURATION, BYTES, BOOL (0, 1), ENUM (place in words).
 * -EINVAL: see complaint.
 */
MUST_CHECK int option_value_read(const struct option *option, struct slice text, uint64_t *number,
                                 struct option_complaint *complaint);

/* Whether text is one of the row's words; true where it has none. */
MUST_CHECK int option_value_check_word(const struct option *option, struct slice text,
                                       struct option_complaint *complaint);

/* number in the largest unit that writes it exactly: "10s", "32MiB", "8080". */
void option_value_write(const struct option *option, uint64_t number, char text[32]);

#endif
