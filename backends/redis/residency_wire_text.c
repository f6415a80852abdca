/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/redis/residency_wire.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>

/*
 * DESIGN
 *
 * What people look at with redis-cli when something is wrong is text. Values are as strict as those
 * in binary: a number of digits alone, in its range; hashes of sixteen hex digits. Texts go into
 * logs and terminals, so they hold no control characters.
 */

enum { HEX_DIGITS = 16 };

/* ---- values ---- */

static int read_number(struct slice text, uint64_t max, uint64_t *number)
{
    uint64_t value = 0;

    if (text.len == 0 || text.len > 20)
        return -EPROTO;
    for (size_t i = 0; i < text.len; i++) {
        const uint64_t digit = (uint64_t)(text.ptr[i] - '0');

        if (text.ptr[i] < '0' || digit > 9 || value > (UINT64_MAX - digit) / 10)
            return -EPROTO;
        value = value * 10 + digit;
    }
    if (value > max)
        return -EPROTO;
    *number = value;
    return 0;
}

static int read_u32(struct slice text, uint32_t *number)
{
    uint64_t value;
    int status = read_number(text, UINT32_MAX, &value);

    if (status == 0)
        *number = (uint32_t)value;
    return status;
}

static int read_bool(struct slice text, bool *flag)
{
    uint64_t value;
    int status = read_number(text, 1, &value);

    if (status == 0)
        *flag = value == 1;
    return status;
}

static int read_hex(struct slice text, uint64_t *number)
{
    uint64_t value = 0;

    if (text.len != HEX_DIGITS)
        return -EPROTO;
    for (size_t i = 0; i < text.len; i++) {
        const char c = text.ptr[i];

        if (c >= '0' && c <= '9')
            value = value << 4 | (uint64_t)(c - '0');
        else if (c >= 'a' && c <= 'f')
            value = value << 4 | (uint64_t)(c - 'a' + 10);
        else
            return -EPROTO;
    }
    *number = value;
    return 0;
}

static int read_text(struct slice text, char copy[RESIDENCY_TEXT_BYTES_MAX])
{
    if (text.len >= RESIDENCY_TEXT_BYTES_MAX)
        return -EPROTO;
    for (size_t i = 0; i < text.len; i++) {
        if ((unsigned char)text.ptr[i] < ' ' || text.ptr[i] == 0x7f)
            return -EPROTO;
    }
    if (text.len > 0)
        memcpy(copy, text.ptr, text.len);
    copy[text.len] = '\0';
    return 0;
}

/* ---- lease ---- */

int residency_lease_write(struct buf *out, const struct residency_lease *lease)
{
    int status = buf_printf(out,
                            "v=%d fp=%016" PRIx64 " life=%016" PRIx64 "-%" PRIu32 " seq=%" PRIu64
                            " pages=%" PRIu32 " ms=%" PRIu32 " whole=%d",
                            RESIDENCY_WIRE_VERSION, lease->fingerprint, lease->life.epoch,
                            lease->life.generation, lease->sequence, lease->page_count,
                            lease->interval_ms, lease->is_whole);

    if (status == 0 && lease->after_epoch != 0)
        status = buf_printf(out, " after=%016" PRIx64, lease->after_epoch);
    if (status == 0 && lease->has_load)
        status = buf_printf(out, " running=%" PRIu32 " waiting=%" PRIu32, lease->running,
                            lease->waiting);
    if (status == 0 && lease->cpu_queue_ms > 0)
        status = buf_printf(out, " cpuq=%" PRIu32, lease->cpu_queue_ms);
    if (status == 0 && lease->ssd_queue_ms > 0)
        status = buf_printf(out, " ssdq=%" PRIu32, lease->ssd_queue_ms);
    return status;
}

/* "<epoch, 16 hex digits>-<generation>" */
static int read_life(struct slice text, struct residency_life *life)
{
    if (text.len <= HEX_DIGITS || text.ptr[HEX_DIGITS] != '-' ||
        read_hex(slice_of(text.ptr, HEX_DIGITS), &life->epoch) < 0 || life->epoch == 0)
        return -EPROTO;
    return read_u32(slice_skip(text, HEX_DIGITS + 1), &life->generation);
}

/* What a lease must say; the rest has a meaning where it is missing. */
enum word { WORD_VERSION, WORD_FP, WORD_LIFE, WORD_SEQ, WORD_PAGES, WORD_MS, WORD_MUST_COUNT };
enum {
    WORD_WHOLE = WORD_MUST_COUNT,
    WORD_AFTER,
    WORD_RUNNING,
    WORD_WAITING,
    WORD_CPU_QUEUE,
    WORD_SSD_QUEUE,
    WORD_COUNT
};

static const char *const words[] = {
    [WORD_VERSION] = "v",      [WORD_FP] = "fp",           [WORD_LIFE] = "life",
    [WORD_SEQ] = "seq",        [WORD_PAGES] = "pages",     [WORD_MS] = "ms",
    [WORD_WHOLE] = "whole",    [WORD_RUNNING] = "running", [WORD_WAITING] = "waiting",
    [WORD_CPU_QUEUE] = "cpuq", [WORD_SSD_QUEUE] = "ssdq",  [WORD_AFTER] = "after",
};
static_assert(array_count(words) == WORD_COUNT, "every word has a name");

static int read_word(struct residency_lease *lease, size_t word, struct slice value)
{
    uint64_t version;

    switch (word) {
    case WORD_VERSION:
        return read_number(value, UINT32_MAX, &version) == 0 && version == RESIDENCY_WIRE_VERSION
                   ? 0
                   : -EPROTO;
    case WORD_FP:
        return read_hex(value, &lease->fingerprint);
    case WORD_LIFE:
        return read_life(value, &lease->life);
    case WORD_SEQ:
        return read_number(value, UINT64_MAX, &lease->sequence);
    case WORD_PAGES:
        return read_u32(value, &lease->page_count);
    case WORD_MS:
        return read_u32(value, &lease->interval_ms);
    case WORD_WHOLE:
        return read_bool(value, &lease->is_whole);
    case WORD_AFTER:
        return read_hex(value, &lease->after_epoch);
    case WORD_RUNNING:
        return read_u32(value, &lease->running);
    case WORD_WAITING:
        return read_u32(value, &lease->waiting);
    case WORD_CPU_QUEUE:
        return read_u32(value, &lease->cpu_queue_ms);
    case WORD_SSD_QUEUE:
        return read_u32(value, &lease->ssd_queue_ms);
    default:
        return 0; /* not known: of a later version */
    }
}

/* Up to the next byte, which is taken too. */
static struct slice cut_at(struct slice *text, char byte)
{
    const char *found = text->len > 0 ? memchr(text->ptr, byte, text->len) : NULL;
    const size_t len = found != NULL ? (size_t)(found - text->ptr) : text->len;
    const struct slice head = slice_of(text->ptr, len);

    *text = slice_skip(*text, found != NULL ? len + 1 : len);
    return head;
}

int residency_lease_read(struct slice text, struct residency_lease *lease)
{
    const uint32_t must = (1u << WORD_MUST_COUNT) - 1;
    const uint32_t load = 1u << WORD_RUNNING | 1u << WORD_WAITING;
    struct residency_lease read = {.is_whole = false};
    uint32_t seen = 0;

    while (text.len > 0) {
        struct slice value = cut_at(&text, ' ');
        const struct slice name = cut_at(&value, '=');
        size_t word = 0;

        while (word < WORD_COUNT && !slice_eq(name, slice_of_string(words[word])))
            word++;
        if (read_word(&read, word, value) < 0)
            return -EPROTO;
        if (word < WORD_COUNT)
            seen |= 1u << word;
    }
    if ((seen & must) != must)
        return -EPROTO;
    read.has_load = (seen & load) == load;
    *lease = read;
    return 0;
}

/* ---- meta ---- */

enum field {
    FIELD_FP,
    FIELD_URL,
    FIELD_ENGINE,
    FIELD_NODE,
    FIELD_VERSION,
    FIELD_EPOCH,
    FIELD_BLOCK_TOKENS,
    FIELD_CACHE_TOKENS,
    FIELD_HAS_ANCHORS,
    FIELD_TEXT_DEPTH_MAX,
    FIELD_BYTES_PER_TOKEN,
    FIELD_CPU_BYTES_PER_S,
    FIELD_SSD_BYTES_PER_S,
    FIELD_CPU_START_US,
    FIELD_SSD_START_US,
    FIELD_PREFILL_TOKENS_PER_S,
};

static const char *const fields[] = {
    [FIELD_FP] = "fp",
    [FIELD_URL] = "url",
    [FIELD_ENGINE] = "engine",
    [FIELD_NODE] = "node",
    [FIELD_VERSION] = "version",
    [FIELD_EPOCH] = "epoch",
    [FIELD_BLOCK_TOKENS] = "block_tokens",
    [FIELD_CACHE_TOKENS] = "cache_tokens",
    [FIELD_HAS_ANCHORS] = "has_anchors",
    [FIELD_TEXT_DEPTH_MAX] = "text_depth_max",
    [FIELD_BYTES_PER_TOKEN] = "bytes_per_token",
    [FIELD_CPU_BYTES_PER_S] = "cpu_bytes_per_s",
    [FIELD_SSD_BYTES_PER_S] = "ssd_bytes_per_s",
    [FIELD_CPU_START_US] = "cpu_start_us",
    [FIELD_SSD_START_US] = "ssd_start_us",
    [FIELD_PREFILL_TOKENS_PER_S] = "prefill_tokens_per_s",
};
static_assert(array_count(fields) == RESIDENCY_META_FIELD_COUNT, "every field has a name");

int residency_meta_write_field(const struct residency_meta *meta, size_t index, const char **field,
                               struct buf *value)
{
    assert(index < RESIDENCY_META_FIELD_COUNT);

    *field = fields[index];
    switch (index) {
    case FIELD_FP:
        return buf_printf(value, "%016" PRIx64, meta->fingerprint);
    case FIELD_URL:
        return buf_printf(value, "%s", meta->url);
    case FIELD_ENGINE:
        return buf_printf(value, "%s", meta->engine);
    case FIELD_NODE:
        return buf_printf(value, "%s", meta->node);
    case FIELD_VERSION:
        return buf_printf(value, "%s", meta->version);
    case FIELD_EPOCH:
        return buf_printf(value, "%016" PRIx64, meta->epoch);
    case FIELD_BLOCK_TOKENS:
        return buf_printf(value, "%" PRIu32, meta->block_tokens);
    case FIELD_CACHE_TOKENS:
        return buf_printf(value, "%" PRIu64, meta->cache_tokens);
    case FIELD_HAS_ANCHORS:
        return buf_printf(value, "%d", meta->has_anchors);
    case FIELD_TEXT_DEPTH_MAX:
        return buf_printf(value, "%" PRIu32, meta->text_depth_max);
    case FIELD_BYTES_PER_TOKEN:
        return buf_printf(value, "%" PRIu32, meta->bytes_per_token);
    case FIELD_CPU_BYTES_PER_S:
        return buf_printf(value, "%" PRIu64, meta->cpu_bytes_per_s);
    case FIELD_SSD_BYTES_PER_S:
        return buf_printf(value, "%" PRIu64, meta->ssd_bytes_per_s);
    case FIELD_CPU_START_US:
        return buf_printf(value, "%" PRIu32, meta->cpu_start_us);
    case FIELD_SSD_START_US:
        return buf_printf(value, "%" PRIu32, meta->ssd_start_us);
    case FIELD_PREFILL_TOKENS_PER_S:
        return buf_printf(value, "%" PRIu32, meta->prefill_tokens_per_s);
    default:
        assert(!"every field is written");
    }
}

int residency_meta_read_field(struct residency_meta *meta, struct slice field, struct slice value)
{
    size_t index = 0;

    while (index < RESIDENCY_META_FIELD_COUNT && !slice_eq(field, slice_of_string(fields[index])))
        index++;
    switch (index) {
    case FIELD_FP:
        return read_hex(value, &meta->fingerprint);
    case FIELD_URL:
        return read_text(value, meta->url);
    case FIELD_ENGINE:
        return read_text(value, meta->engine);
    case FIELD_NODE:
        return read_text(value, meta->node);
    case FIELD_VERSION:
        return read_text(value, meta->version);
    case FIELD_EPOCH:
        return read_hex(value, &meta->epoch);
    case FIELD_BLOCK_TOKENS:
        return read_u32(value, &meta->block_tokens);
    case FIELD_CACHE_TOKENS:
        return read_number(value, UINT64_MAX, &meta->cache_tokens);
    case FIELD_HAS_ANCHORS:
        return read_bool(value, &meta->has_anchors);
    case FIELD_TEXT_DEPTH_MAX:
        return read_u32(value, &meta->text_depth_max);
    case FIELD_BYTES_PER_TOKEN:
        return read_u32(value, &meta->bytes_per_token);
    case FIELD_CPU_BYTES_PER_S:
        return read_number(value, UINT64_MAX, &meta->cpu_bytes_per_s);
    case FIELD_SSD_BYTES_PER_S:
        return read_number(value, UINT64_MAX, &meta->ssd_bytes_per_s);
    case FIELD_CPU_START_US:
        return read_u32(value, &meta->cpu_start_us);
    case FIELD_SSD_START_US:
        return read_u32(value, &meta->ssd_start_us);
    case FIELD_PREFILL_TOKENS_PER_S:
        return read_u32(value, &meta->prefill_tokens_per_s);
    default:
        return 0; /* not known: of a later version */
    }
}

int residency_meta_check(const struct residency_meta *meta)
{
    return meta->url[0] != '\0' && meta->epoch != 0 && meta->fingerprint != 0 ? 0 : -EPROTO;
}
