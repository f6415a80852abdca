/* SPDX-License-Identifier: Apache-2.0 */

/*
 * prompt_parts: what the prompts of several APIs are made of: contents, tools, refusals. Each API
 * has a file of its own that calls these. Private to prompt_stream. Pure; any thread.
 */
#ifndef ROUTER_PROMPT_PROMPT_PARTS_H
#define ROUTER_PROMPT_PROMPT_PARTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/json/json_scan.h"
#include "backends/runtime/arena.h"
#include "backends/runtime/must_check.h"
#include "router/api/api_request.h"
#include "router/prompt/prompt_writer.h"
#include "router/prompt/tool_place.h"

/* Where a prompt is written to. */
struct prompt_sink {
    struct prompt_writer writer;
    struct arena *arena;
    const uint8_t *secret;
    size_t block_count_max;
    struct api_fault *fault;
    enum tool_place tool_place;
    size_t before_tools_count; /* see prompt_blocks */
    uint64_t before_tools_bytes;
    bool has_media; /* a part was written that is no text */
};

/* Fills the sink's fault. -EINVAL. */
MUST_CHECK int prompt_refuse(struct prompt_sink *sink, const char *code, const char *param,
                             const char *message);

/* A request of messages has an array of them, and one at least. -EINVAL: fault says so. */
MUST_CHECK int prompt_check_messages(struct prompt_sink *sink, struct json_value messages);

/* Whether a message's role is that of instructions. Templates print such a message in front of the
 * tools where it is the first, and most print tools behind it. */
bool prompt_role_leads(struct slice role);

/* In front of which message the tools stand, where lead_count of the messages lead and last_user is
 * the index of the last of a user; SIZE_MAX: there is none. The messages' number: behind all. */
size_t prompt_tools_at(const struct prompt_sink *sink, size_t lead_count, size_t last_user);

/* A field with its tag, unless text is empty. */
void prompt_write_nonempty(struct prompt_sink *sink, enum prompt_tag tag, struct slice text);

/* A part that is no text, by digest. */
void prompt_write_media(struct prompt_sink *sink, struct json_value part);

/*
 * Null, a string, or an array of parts: texts as TAG_TEXT, other parts by digest. param is the
 * field's name for the fault. -EINVAL.
 */
MUST_CHECK int prompt_write_content(struct prompt_sink *sink, struct json_value content,
                                    const char *param);

/* Notes where tools begin, if there are any, in a stream that has them late. */
void prompt_begin_tools(struct prompt_sink *sink, struct json_value tools);

/* A tool as {"type":"function","function":{...}}: with its members in their order, as templates
 * print them. Whatever else it is, it is written likewise. */
void prompt_write_tool(struct prompt_sink *sink, struct json_value tool);

/*
 * A function whose name, description and schema stand at the tool's own top, written as
 * prompt_write_tool() writes the same function, since engines make that of it: these three in this
 * order, whatever the body's, then the others. schema_key: how the API calls what chat calls
 * parameters.
 */
void prompt_write_flat_tool(struct prompt_sink *sink, struct json_value tool,
                            const char *schema_key);

/* The prompt of a whole request, one for each shape. -EINVAL: fault says why. */
MUST_CHECK int prompt_write_chat(struct prompt_sink *sink, const struct api_request *request);
MUST_CHECK int prompt_write_responses(struct prompt_sink *sink, const struct api_request *request);
MUST_CHECK int prompt_write_messages(struct prompt_sink *sink, const struct api_request *request);

/* further_bytes: of the second and later prompts of the body, which get no names. */
MUST_CHECK int prompt_write_completion(struct prompt_sink *sink, const struct api_request *request,
                                       uint64_t *further_bytes);

/* About how many bytes of text the engine will read for a request whose prompt gets no names. */
uint64_t prompt_size(const struct api_request *request);

#endif
