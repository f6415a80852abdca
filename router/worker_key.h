/* SPDX-License-Identifier: Apache-2.0 */

/*
 * worker_key: the secret that workers ask for, read from its file. It is sent and never shown.
 * Start of the process only.
 */
#ifndef ROUTER_WORKER_KEY_H
#define ROUTER_WORKER_KEY_H

#include "backends/runtime/must_check.h"

/*
 * *authorization becomes the value of an Authorization header, "Bearer <first line of the file>";
 * NULL when path is "". -errno with a sentence in why that quotes nothing of the file: it cannot be
 * read, or holds no key of printable characters.
 */
MUST_CHECK int worker_key_read(const char *path, char **authorization, char why[256]);

/* Wipes and frees it; NULLs the pointer. */
void worker_key_forget(char **authorization);

#endif
