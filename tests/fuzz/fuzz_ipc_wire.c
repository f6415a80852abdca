/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Any bytes, as an engine or somebody else who can reach the agent's socket may send them: what is
 * given out lies in them, all of it can be read, and what is a message is written as the same
 * bytes.
 */
#include "kvtier/connector/ipc_wire.h"

#include "tests/fuzz/fuzz_input.h"

#include <assert.h>
#include <errno.h>

static void check_inside(struct slice bytes, struct slice part)
{
    assert(part.len == 0 ||
           (part.ptr >= bytes.ptr && part.ptr + part.len <= bytes.ptr + bytes.len));
}

static void check_hello(struct slice bytes, const struct ipc_hello *hello)
{
    check_inside(bytes, hello->regions);
    check_inside(bytes, hello->segments);
    assert(hello->region_count <= PAGE_REGION_COUNT_MAX);
    assert(hello->segment_count <= PAGE_SEGMENT_COUNT_MAX);
    for (size_t i = 0; i < hello->region_count; i++)
        (void)ipc_hello_region(hello, i);
    for (size_t i = 0; i < hello->segment_count; i++)
        (void)ipc_hello_segment(hello, i);
}

static void check_save(struct slice bytes, const struct ipc_save *save)
{
    struct slice rest = save->entries;
    struct ipc_save_entry entry;
    uint32_t count = 0;

    check_inside(bytes, rest);
    for (; ipc_save_entry(&rest, &entry); count++)
        check_inside(bytes, entry.engine_blocks);
    assert(count == save->entry_count && rest.len == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct slice bytes = slice_of(data, size);
    struct ipc_message message;
    struct buf again;
    int status = ipc_message_read(bytes, &message);

    assert(status == 0 || status == -EPROTO || status == -EPROTONOSUPPORT);
    if (status < 0)
        return 0;
    if (message.kind == IPC_HELLO)
        check_hello(bytes, &message.as.hello);
    if (message.kind == IPC_SAVE)
        check_save(bytes, &message.as.save);
    buf_init(&again, IPC_MESSAGE_BYTES_MAX);
    assert(ipc_message_write(&again, &message) == 0);
    assert(slice_eq(buf_slice(&again), bytes));
    buf_release(&again);
    return 0;
}
