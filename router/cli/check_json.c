/* SPDX-License-Identifier: Apache-2.0 */

#include "router/cli/check_json.h"

#include "backends/json/json_write.h"

/*
 * DESIGN
 *
 * A writer that remembers its first failure, so that what is written reads like what comes out.
 */

enum { VALUE_BYTES_MAX = 1 << 20 };

struct json_text {
    struct buf *out;
    int status;
};

static void put(struct json_text *text, const char *raw)
{
    if (text->status == 0)
        text->status = buf_append(text->out, slice_of_string(raw));
}

static void put_string(struct json_text *text, struct slice string)
{
    if (text->status == 0)
        text->status = json_write_string(text->out, string);
}

/* between: what stands before the name, "{" or ",". */
static void put_member(struct json_text *text, const char *between, const char *name,
                       struct slice value)
{
    put(text, between);
    put_string(text, slice_of_string(name));
    put(text, ":");
    put_string(text, value);
}

static void put_errors(struct json_text *text, const struct option_set *set)
{
    put(text, ",\"errors\":[");
    for (size_t i = 0; i < set->error_count; i++) {
        put(text, i > 0 ? "," : "");
        put_member(text, "{", "where", slice_of_string(set->errors[i].where));
        put_member(text, ",", "what", slice_of_string(set->errors[i].what));
        put_member(text, ",", "advice", slice_of_string(set->errors[i].advice));
        put(text, "}");
    }
    put(text, "]");
}

/* Members "value" and "origin" of option, without braces. */
static void put_value(struct json_text *text, const char *between, const struct option_set *set,
                      const struct option *option)
{
    struct buf written;

    buf_init(&written, VALUE_BYTES_MAX);
    if (text->status == 0)
        text->status = option_set_write_value(set, option, &written);
    put_member(text, between, "value", buf_slice(&written));
    buf_clear(&written);
    if (text->status == 0)
        text->status = option_set_write_origin(set, option, &written);
    put_member(text, ",", "origin", buf_slice(&written));
    buf_release(&written);
}

static void put_doubts(struct json_text *text, const struct check_findings *findings)
{
    put(text, ",\"doubts\":[");
    for (size_t i = 0; i < findings->doubt_count; i++) {
        const struct doubt *doubt = findings->doubts[i];
        const struct option *option =
            option_table_find(findings->set->table, slice_of_string(doubt->option));

        put(text, i > 0 ? "," : "");
        put_member(text, "{", "option", slice_of_string(doubt->option));
        put_value(text, ",", findings->set, option);
        put_member(text, ",", "why", slice_of_string(doubt->why));
        put_member(text, ",", "advice", slice_of_string(doubt->advice));
        put(text, "}");
    }
    put(text, "]");
}

static void put_options(struct json_text *text, const struct option_set *set)
{
    const char *between = "";

    put(text, ",\"options\":{");
    for (size_t i = 0; i < set->table->count; i++) {
        const struct option *option = &set->table->options[i];

        if (option->phase == OPTION_COMMAND)
            continue;
        put(text, between);
        put_string(text, slice_of_string(option->name));
        put(text, ":");
        put_value(text, "{", set, option);
        put(text, "}");
        between = ",";
    }
    put(text, "}");
}

int check_json_write(const struct check_findings *findings, struct buf *out)
{
    struct json_text text = {.out = out};
    bool has_errors = option_set_has_errors(findings->set);

    put(&text, has_errors ? "{\"ok\":false" : "{\"ok\":true");
    put_errors(&text, findings->set);
    put_doubts(&text, findings);
    if (findings->wants_values && !has_errors)
        put_options(&text, findings->set);
    put(&text, "}\n");
    return text.status;
}
