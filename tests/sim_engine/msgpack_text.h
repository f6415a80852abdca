/* SPDX-License-Identifier: Apache-2.0 */

/* msgpack_text: writes MessagePack into a buf that has no limit, each value in its shortest form,
 * as engines do. Memory that cannot be had ends the program, so nothing needs to be checked. Pure.
 */
#ifndef TESTS_SIM_ENGINE_MSGPACK_TEXT_H
#define TESTS_SIM_ENGINE_MSGPACK_TEXT_H

#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/buf.h"
#include "backends/runtime/slice.h"

void msgpack_put_nil(struct buf *buf);
void msgpack_put_uint(struct buf *buf, uint64_t number);
void msgpack_put_real(struct buf *buf, double number);
void msgpack_put_string(struct buf *buf, struct slice text);
void msgpack_put_binary(struct buf *buf, struct slice bytes);

/* Only the head: that many elements, or pairs of key and value, are to follow. */
void msgpack_put_array(struct buf *buf, size_t count);
void msgpack_put_map(struct buf *buf, size_t count);

#endif
