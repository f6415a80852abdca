/* SPDX-License-Identifier: Apache-2.0 */

/*
 * connector_socket: a Unix socket that keeps messages apart, with waits that end: nothing here
 * knows what the messages say. Any thread; no loop.
 */
#ifndef TESTS_SIM_ENGINE_CONNECTOR_SOCKET_H
#define TESTS_SIM_ENGINE_CONNECTOR_SOCKET_H

#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/must_check.h"
#include "backends/runtime/slice.h"

/* A connected one that never blocks. -errno: nobody listens there, or too many wait. */
MUST_CHECK int connector_socket_open(const char *path);

/* All of message, with the descriptor fd unless it is negative. Waits that long for room.
 * -ETIMEDOUT, -EPIPE, -ECONNRESET and others: nothing was sent. */
MUST_CHECK int connector_socket_send(int socket, struct slice message, int fd, uint64_t wait_us);

/* One message into bytes; waits that long for it. Its length; 0: end of file; -ETIMEDOUT;
 * -EMSGSIZE: it was longer than size, and is lost. */
MUST_CHECK int connector_socket_receive(int socket, void *bytes, size_t size, uint64_t wait_us);

#endif
