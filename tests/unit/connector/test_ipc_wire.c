/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/connector/ipc_wire.h"

#include "tests/support/leak_check.h"
#include "tests/unit/connector/ipc_messages.h"

#include <errno.h>
#include <stdlib.h>

enum { LENGTH_AT = 4, VERSION_AT = 2, KIND_AT = 3 };

/* The bytes of a message of that kind; free them. */
static char *message_bytes(enum ipc_kind kind, size_t *len)
{
    struct ipc_parts parts;
    struct buf out;
    char *bytes;

    ipc_parts_init(&parts);
    buf_init(&out, BUF_BYTES_MAX);
    struct ipc_message message = ipc_message_of(kind, &parts);
    cr_assert(zero(int, ipc_message_write(&out, &message)));
    *len = buf_len(&out);
    bytes = malloc(*len); /* exactly as long: ASan sees a byte read behind it */
    cr_assert(ne(ptr, bytes, NULL));
    memcpy(bytes, buf_slice(&out).ptr, *len);
    buf_release(&out);
    ipc_parts_release(&parts);
    return bytes;
}

static void put_u32(char *bytes, uint32_t value)
{
    for (size_t i = 0; i < 4; i++)
        bytes[i] = (char)(uint8_t)(value >> 8 * i);
}

/* What reading says once the u32 at offset is value. */
static int read_with(enum ipc_kind kind, size_t offset, uint32_t value)
{
    struct ipc_message message;
    size_t len;
    char *bytes = message_bytes(kind, &len);
    int status;

    cr_assert(le(sz, offset + 4, len));
    put_u32(bytes + offset, value);
    status = ipc_message_read(slice_of(bytes, len), &message);
    free(bytes);
    return status;
}

TestSuite(ipc_wire, .fini = leak_check);

Test(ipc_wire, every_kind_is_read_as_it_was_written)
{
    for (size_t i = 0; i < IPC_KIND_COUNT; i++) {
        struct ipc_message message;
        struct buf again;
        size_t len;
        char *bytes = message_bytes(ipc_kinds[i], &len);

        cr_assert(zero(int, ipc_message_read(slice_of(bytes, len), &message)), "kind %d",
                  (int)ipc_kinds[i]);

        cr_expect(eq(u64, message.boot, 0x1122334455667788));
        buf_init(&again, BUF_BYTES_MAX);
        cr_assert(zero(int, ipc_message_write(&again, &message)));
        cr_expect(slice_eq(buf_slice(&again), slice_of(bytes, len)), "kind %d", (int)ipc_kinds[i]);
        buf_release(&again);
        free(bytes);
    }
}

Test(ipc_wire, a_hello_says_who_and_where)
{
    struct ipc_message message;
    size_t len;
    char *bytes = message_bytes(IPC_HELLO, &len);

    cr_assert(zero(int, ipc_message_read(slice_of(bytes, len), &message)));

    const struct ipc_hello *hello = &message.as.hello;
    cr_expect(eq(int, hello->role, IPC_WORKER));
    cr_expect(eq(int, hello->device, DEVICE_CUDA));
    cr_expect(eq(u16, hello->rank, 1));
    cr_expect(eq(u16, hello->rank_count, 2));
    cr_expect(eq(u32, hello->block_count, 1000));
    cr_expect(eq(u32, hello->block_tokens, 16));
    cr_expect(eq(u8, hello->engine_id[2], 3));
    cr_expect(eq(u8, hello->uuid[15], 4));
    cr_expect(eq(u8, hello->event_handle[63], 5));
    cr_expect(slice_eq(hello->worker, SLICE("http://10.0.0.1:8000")));
    cr_expect(slice_eq(hello->model, SLICE("tiny float32")));
    cr_expect(slice_eq(hello->version, SLICE("0.32.0")));
    const struct ipc_region region = ipc_hello_region(hello, 0);
    cr_expect(eq(u64, region.bytes, 4096));
    cr_expect(eq(u64, region.offset, 512));
    cr_expect(eq(u8, region.handle[63], 9));
    const struct page_segment segment = ipc_hello_segment(hello, 1);
    cr_expect(eq(u32, segment.region, 0));
    cr_expect(eq(u64, segment.offset, UINT64_MAX));
    cr_expect(eq(u64, segment.stride, 65));
    cr_expect(eq(u64, segment.bytes, 33));
    free(bytes);
}

Test(ipc_wire, the_bytes_of_a_lookup_are_what_the_header_says)
{
    static const char expected[] = "SV\x01\x04\x20\x00\x00\x00\x88\x77\x66\x55\x44\x33\x22\x11"
                                   "\x01\x00\x00\x00\x00\x00\x00\x00\x20\x00\x00\x00\x00\x00\x00";
    size_t len;
    char *bytes = message_bytes(IPC_LOOKUP, &len);

    cr_assert(eq(sz, len, sizeof expected)); /* its NUL is the last byte of the spare field */
    cr_expect(slice_eq(slice_of(bytes, len), slice_of(expected, sizeof expected)));
    free(bytes);
}

Test(ipc_wire, a_message_cut_at_any_byte_is_none)
{
    for (size_t i = 0; i < IPC_KIND_COUNT; i++) {
        size_t len;
        char *bytes = message_bytes(ipc_kinds[i], &len);

        for (size_t cut = 0; cut < len; cut++) {
            struct ipc_message message;
            char *shorter = malloc(cut + 1);

            memcpy(shorter, bytes, cut);
            cr_assert(eq(int, ipc_message_read(slice_of(shorter, cut), &message), -EPROTO));
            /* Nor with a head that says so. */
            if (cut >= IPC_HEAD_BYTES) {
                put_u32(shorter + LENGTH_AT, (uint32_t)cut);
                cr_assert(eq(int, ipc_message_read(slice_of(shorter, cut), &message), -EPROTO),
                          "kind %d cut to %zu", (int)ipc_kinds[i], cut);
            }
            free(shorter);
        }
        free(bytes);
    }
}

Test(ipc_wire, a_message_with_a_byte_more_is_none)
{
    for (size_t i = 0; i < IPC_KIND_COUNT; i++) {
        struct ipc_message message;
        size_t len;
        char *bytes = message_bytes(ipc_kinds[i], &len);

        bytes = realloc(bytes, len + 1);
        bytes[len] = 0;
        cr_assert(eq(int, ipc_message_read(slice_of(bytes, len + 1), &message), -EPROTO));
        put_u32(bytes + LENGTH_AT, (uint32_t)len + 1);
        cr_assert(eq(int, ipc_message_read(slice_of(bytes, len + 1), &message), -EPROTO));
        free(bytes);
    }
}

Test(ipc_wire, another_version_is_told_from_no_message)
{
    struct ipc_message message;
    size_t len;
    char *bytes = message_bytes(IPC_PING, &len);

    bytes[VERSION_AT] = 2;
    cr_expect(eq(int, ipc_message_read(slice_of(bytes, len), &message), -EPROTONOSUPPORT));
    bytes[0] = 'X';
    cr_expect(eq(int, ipc_message_read(slice_of(bytes, len), &message), -EPROTO));
    free(bytes);
}

Test(ipc_wire, an_unknown_kind_is_no_message)
{
    for (unsigned kind = 0; kind < 256; kind++) {
        struct ipc_message message;
        bool is_known = false;
        size_t len;
        char *bytes = message_bytes(IPC_PING, &len);

        for (size_t i = 0; i < IPC_KIND_COUNT; i++)
            is_known = is_known || (unsigned)ipc_kinds[i] == kind;
        bytes[KIND_AT] = (char)kind;

        if (!is_known)
            cr_expect(eq(int, ipc_message_read(slice_of(bytes, len), &message), -EPROTO));
        free(bytes);
    }
}

/* Where counts lie, from the start of the message. */
Test(ipc_wire, counts_without_their_bytes_are_refused)
{
    static const struct {
        enum ipc_kind kind;
        size_t offset;
    } counts[] = {
        {IPC_HELLO, 16 + 8}, /* segments */
        {IPC_OPEN, 16 + 12}, {IPC_TOKENS, 16 + 12},
        {IPC_LOAD, 16 + 20}, {IPC_SAVE, 16 + 8}, /* entries */
        {IPC_SAVE, 16 + 36},                     /* blocks of the first */
    };
    static const uint32_t hostile[] = {0,          1,          3,          512,        513,
                                       15000,      15001,      0x3fffffff, 0x40000000, 0x40000002,
                                       0x7fffffff, 0x80000000, 0xffffffff};

    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        for (size_t j = 0; j < sizeof hostile / sizeof hostile[0]; j++) {
            if (counts[i].offset == 16 + 8 && counts[i].kind == IPC_SAVE && hostile[j] == 3)
                continue; /* that is what it has */
            cr_expect(eq(int, read_with(counts[i].kind, counts[i].offset, hostile[j]), -EPROTO),
                      "kind %d at %zu: %u", (int)counts[i].kind, counts[i].offset, hostile[j]);
        }
}

Test(ipc_wire, what_is_out_of_range_is_refused)
{
    cr_expect(eq(int, read_with(IPC_HELLO, 16, 0x00010003), -EPROTO));     /* a third role */
    cr_expect(eq(int, read_with(IPC_HELLO, 16, 0x00010202), -EPROTO));     /* a third device */
    cr_expect(eq(int, read_with(IPC_HELLO, 16 + 4, 0xffff0002), -EPROTO)); /* regions */
    cr_expect(eq(int, read_with(IPC_FOUND, 16 + 16, 5), -EPROTO));
    cr_expect(eq(int, read_with(IPC_REFUSED, 16, 0), -EPROTO));
    cr_expect(eq(int, read_with(IPC_REFUSED, 16, 7), -EPROTO));
    cr_expect(eq(int, read_with(IPC_LOOKUP, 16 + 12, 1), -EPROTO)); /* spare */
}

Test(ipc_wire, a_text_too_long_is_refused_and_not_written)
{
    static char text[IPC_TEXT_BYTES_MAX + 1];
    struct ipc_message message = {
        .kind = IPC_REFUSED,
        .as.refused = {.code = IPC_REFUSED_BUSY, .text = {text, IPC_TEXT_BYTES_MAX}}};
    struct buf out;

    buf_init(&out, BUF_BYTES_MAX);
    cr_assert(zero(int, ipc_message_write(&out, &message)));
    cr_expect(zero(int, ipc_message_read(buf_slice(&out), &message)));
    buf_clear(&out);
    message.as.refused.text = slice_of(text, sizeof text);

    cr_expect(eq(int, ipc_message_write(&out, &message), -EMSGSIZE));

    cr_expect(eq(sz, buf_len(&out), 0));
    buf_release(&out);
}

Test(ipc_wire, the_longest_lists_have_room_and_no_more)
{
    static uint8_t numbers[(IPC_BLOCK_COUNT_MAX + 1) * 4];
    struct ipc_message message = {.kind = IPC_LOAD};
    struct buf out;

    buf_init(&out, BUF_BYTES_MAX);
    message.as.load.block_count = IPC_BLOCK_COUNT_MAX;
    message.as.load.engine_blocks = slice_of(numbers, (size_t)IPC_BLOCK_COUNT_MAX * 4);
    cr_assert(zero(int, ipc_message_write(&out, &message)));
    cr_expect(zero(int, ipc_message_read(buf_slice(&out), &message)));
    buf_clear(&out);
    message.as.load.block_count = IPC_BLOCK_COUNT_MAX + 1;
    message.as.load.engine_blocks = slice_of(numbers, sizeof numbers);

    cr_expect(eq(int, ipc_message_write(&out, &message), -EMSGSIZE));

    cr_expect(eq(sz, buf_len(&out), 0));
    buf_release(&out);
}

Test(ipc_wire, what_does_not_fit_leaves_what_was_there)
{
    struct ipc_message message = {.kind = IPC_PING};
    struct buf out;

    buf_init(&out, 40);
    cr_assert(zero(int, ipc_message_write(&out, &message)));

    cr_expect(eq(int, ipc_message_write(&out, &message), -ENOBUFS));

    cr_expect(eq(sz, buf_len(&out), IPC_HEAD_BYTES + 8));
    buf_release(&out);
}

Test(ipc_wire, entries_of_a_save_come_in_their_order)
{
    struct ipc_save_entry entry;
    struct ipc_message message;
    size_t len;
    char *bytes = message_bytes(IPC_SAVE, &len);
    cr_assert(zero(int, ipc_message_read(slice_of(bytes, len), &message)));
    struct slice rest = message.as.save.entries;

    cr_assert(ipc_save_entry(&rest, &entry));
    cr_expect(eq(u64, entry.request, 5));
    cr_expect(eq(u32, entry.first_block, 3));
    cr_expect(eq(u32, entry.block_count, 2));
    cr_expect(eq(u32, ipc_u32_at(entry.engine_blocks, 1), UINT32_MAX));
    cr_assert(ipc_save_entry(&rest, &entry));
    cr_expect(eq(u64, entry.request, 6));
    cr_expect(eq(u32, entry.block_count, 0));
    cr_assert(ipc_save_entry(&rest, &entry));
    cr_expect(eq(u32, ipc_u32_at(entry.engine_blocks, 0), 1));
    cr_expect(not(ipc_save_entry(&rest, &entry)));
    free(bytes);
}
