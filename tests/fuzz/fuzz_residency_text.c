/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Any text, read as a lease, and line by line as fields of a worker's meta ("field value"): what is
 * taken makes sense, and written again it is read as the same.
 */
#include "backends/redis/residency_wire.h"

#include "tests/fuzz/fuzz_input.h"

#include <assert.h>

enum { TEXT_BYTES_MAX = 4096 };

static void check_lease(struct slice text)
{
    struct residency_lease lease, again;
    struct buf out;

    if (residency_lease_read(text, &lease) < 0)
        return;
    assert(lease.life.epoch != 0);
    buf_init(&out, TEXT_BYTES_MAX);
    assert(residency_lease_write(&out, &lease) == 0);
    assert(residency_lease_read(buf_slice(&out), &again) == 0);
    assert(again.fingerprint == lease.fingerprint && again.life.epoch == lease.life.epoch &&
           again.life.generation == lease.life.generation && again.sequence == lease.sequence &&
           again.page_count == lease.page_count && again.interval_ms == lease.interval_ms &&
           again.after_epoch == lease.after_epoch && again.is_whole == lease.is_whole &&
           again.has_load == lease.has_load && again.cpu_queue_ms == lease.cpu_queue_ms &&
           again.ssd_queue_ms == lease.ssd_queue_ms);
    assert(!lease.has_load || (again.running == lease.running && again.waiting == lease.waiting));
    buf_release(&out);
}

static void check_is_text(const char *text)
{
    assert(memchr(text, '\0', RESIDENCY_TEXT_BYTES_MAX) != NULL);
    for (; *text != '\0'; text++)
        assert((unsigned char)*text >= ' ' && *text != 0x7f);
}

static void check_written_alike(const struct residency_meta *meta)
{
    struct residency_meta again = {.fingerprint = 0};

    for (size_t i = 0; i < RESIDENCY_META_FIELD_COUNT; i++) {
        const char *field;
        struct buf value;

        buf_init(&value, TEXT_BYTES_MAX);
        assert(residency_meta_write_field(meta, i, &field, &value) == 0);
        assert(residency_meta_read_field(&again, slice_of_string(field), buf_slice(&value)) == 0);
        buf_release(&value);
    }
    assert(strcmp(again.url, meta->url) == 0 && strcmp(again.engine, meta->engine) == 0 &&
           strcmp(again.node, meta->node) == 0 && strcmp(again.version, meta->version) == 0);
    assert(again.fingerprint == meta->fingerprint && again.epoch == meta->epoch &&
           again.block_tokens == meta->block_tokens && again.cache_tokens == meta->cache_tokens &&
           again.has_anchors == meta->has_anchors && again.text_depth_max == meta->text_depth_max &&
           again.bytes_per_token == meta->bytes_per_token &&
           again.cpu_bytes_per_s == meta->cpu_bytes_per_s &&
           again.ssd_bytes_per_s == meta->ssd_bytes_per_s &&
           again.cpu_start_us == meta->cpu_start_us && again.ssd_start_us == meta->ssd_start_us &&
           again.prefill_tokens_per_s == meta->prefill_tokens_per_s);
}

static struct slice cut_at(struct slice *text, char byte)
{
    const char *found = text->len > 0 ? memchr(text->ptr, byte, text->len) : NULL;
    const struct slice head =
        slice_of(text->ptr, found != NULL ? (size_t)(found - text->ptr) : text->len);

    *text = slice_skip(*text, found != NULL ? head.len + 1 : head.len);
    return head;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct residency_meta meta = {.fingerprint = 0};
    struct slice text = slice_of(data, size);

    check_lease(text);
    while (text.len > 0) {
        struct slice value = cut_at(&text, '\n');
        const struct slice field = cut_at(&value, ' ');

        if (residency_meta_read_field(&meta, field, value) < 0)
            continue;
    }
    check_is_text(meta.url);
    check_is_text(meta.engine);
    check_is_text(meta.node);
    check_is_text(meta.version);
    check_written_alike(&meta);
    assert(residency_meta_check(&meta) < 0 || meta.url[0] != '\0');
    return 0;
}
