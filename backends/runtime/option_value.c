/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/runtime/option_value.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "backends/runtime/near_name.h"

struct unit {
    const char *suffix;
    uint64_t factor;
};

/* Largest first, as writing tries them; the first with factor 1 is what a bare number means. */
static const struct unit duration_units[] = {{"h", 3600000}, {"m", 60000}, {"s", 1000}, {"ms", 1}};
static const struct unit byte_units[] = {
    {"TiB", 1ull << 40}, {"GiB", 1ull << 30}, {"MiB", 1ull << 20}, {"KiB", 1ull << 10}, {"B", 1}};
static const struct unit no_units[] = {{"", 1}};

struct units {
    const struct unit *units;
    size_t count;
};

static struct units units_of(enum option_kind kind)
{
    if (kind == OPTION_DURATION)
        return (struct units){duration_units, array_count(duration_units)};
    if (kind == OPTION_BYTES)
        return (struct units){byte_units, array_count(byte_units)};
    return (struct units){no_units, array_count(no_units)};
}

static bool find_factor(enum option_kind kind, struct slice suffix, uint64_t *factor)
{
    struct units units = units_of(kind);

    *factor = 1;
    if (suffix.len == 0)
        return true;
    for (size_t i = 0; i < units.count; i++) {
        if (slice_eq_nocase(suffix, slice_of_string(units.units[i].suffix))) {
            *factor = units.units[i].factor;
            return true;
        }
    }
    return false;
}

static const char *number_form(enum option_kind kind)
{
    if (kind == OPTION_DURATION)
        return "a whole number of milliseconds, or one with ms, s, m or h";
    if (kind == OPTION_BYTES)
        return "a whole number of bytes, or one with KiB, MiB, GiB or TiB";
    return "a whole number";
}

static int read_number(const struct option *option, struct slice text, uint64_t *number,
                       char why[OPTION_WHY_BYTES])
{
    uint64_t factor, value = 0;
    bool is_overflow = false;
    size_t digits = 0;
    char least[32], most[32];

    for (; digits < text.len && text.ptr[digits] >= '0' && text.ptr[digits] <= '9'; digits++)
        is_overflow |= __builtin_mul_overflow(value, 10, &value) ||
                       __builtin_add_overflow(value, (uint64_t)(text.ptr[digits] - '0'), &value);
    if (digits == 0 || !find_factor(option->kind, slice_skip(text, digits), &factor)) {
        snprintf(why, OPTION_WHY_BYTES, "is not a number; write %s", number_form(option->kind));
        return -EINVAL;
    }
    is_overflow |= __builtin_mul_overflow(value, factor, &value);
    if (is_overflow || value < option->min || value > option->max) {
        option_value_write(option, option->min, least);
        option_value_write(option, option->max, most);
        snprintf(why, OPTION_WHY_BYTES, "is out of range; write %s to %s%s%s", least, most,
                 option->kind == OPTION_INTEGER && option->unit[0] != '\0' ? " " : "",
                 option->kind == OPTION_INTEGER ? option->unit : "");
        return -EINVAL;
    }
    *number = value;
    return 0;
}

static int read_bool(struct slice text, uint64_t *number, char why[OPTION_WHY_BYTES])
{
    static const char *const words[] = {"false", "true", "no", "yes", "off", "on", "0", "1"};

    for (size_t i = 0; i < array_count(words); i++) {
        if (slice_eq_nocase(text, slice_of_string(words[i]))) {
            *number = i % 2;
            return 0;
        }
    }
    snprintf(why, OPTION_WHY_BYTES, "is neither true nor false");
    return -EINVAL;
}

/* Place of text in the words of option, or an error that lists them. */
static int find_word(const struct option *option, struct slice text, uint64_t *place,
                     char why[OPTION_WHY_BYTES])
{
    const char *nearest = NULL;
    size_t nearest_cost = NEAR_NAME_FAR, len;

    for (size_t i = 0; option->words[i] != NULL; i++) {
        struct slice word = slice_of_string(option->words[i]);
        size_t cost = near_name_cost(text, word);

        if (slice_eq(text, word)) {
            *place = i;
            return 0;
        }
        if (cost < nearest_cost) {
            nearest = option->words[i];
            nearest_cost = cost;
        }
    }
    len = (size_t)snprintf(why, OPTION_WHY_BYTES, "is not known");
    if (nearest != NULL)
        len += (size_t)snprintf(why + len, OPTION_WHY_BYTES - len, "; did you mean %s?", nearest);
    for (size_t i = 0; option->words[i] != NULL && len < OPTION_WHY_BYTES; i++)
        len += (size_t)snprintf(why + len, OPTION_WHY_BYTES - len, "%s%s",
                                i > 0             ? ", "
                                : nearest == NULL ? "; write one of "
                                                  : " There are ",
                                option->words[i]);
    return -EINVAL;
}

int option_value_check_word(const struct option *option, struct slice text,
                            char why[OPTION_WHY_BYTES])
{
    uint64_t place;

    return option->words == NULL ? 0 : find_word(option, text, &place, why);
}

int option_value_read(const struct option *option, struct slice text, uint64_t *number,
                      char why[OPTION_WHY_BYTES])
{
    switch (option->kind) {
    case OPTION_INTEGER:
    case OPTION_DURATION:
    case OPTION_BYTES:
        return read_number(option, text, number, why);
    case OPTION_BOOL:
        return read_bool(text, number, why);
    case OPTION_ENUM:
        return find_word(option, text, number, why);
    case OPTION_TEXT:
    case OPTION_WORD:
    case OPTION_LIST:
        break;
    }
    abort(); /* a text is no number: the caller read the row wrongly */
}

void option_value_write(const struct option *option, uint64_t number, char text[32])
{
    struct units units = units_of(option->kind);
    size_t i = 0;

    while (number == 0 ? units.units[i].factor != 1 : number % units.units[i].factor != 0)
        i++;
    snprintf(text, 32, "%" PRIu64 "%s", number / units.units[i].factor, units.units[i].suffix);
}
