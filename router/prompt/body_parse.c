/* SPDX-License-Identifier: Apache-2.0 */

#include "router/prompt/body_parse.h"

#include <errno.h>

#include "hashing/stream_identity.h"

/*
 * DESIGN
 *
 * The scanner's document lives until its next one, and on the loop thread that may come at once: so
 * the few slices of the request that are wanted later are copied, and the document is given up
 * here.
 */

/* A request that names no such thing keeps naming none. */
static int keep(struct arena *arena, struct slice *slice)
{
    if (slice->ptr != NULL) {
        *slice = arena_copy(arena, *slice);
        if (slice->ptr == NULL)
            return -ENOMEM;
    }
    return 0;
}

static int read_request(struct body_parse *parse, struct json_scanner *scanner)
{
    struct api_request *request = &parse->request;
    int status = api_request_parse(parse->api, scanner, parse->body, request, &parse->fault);

    if (status < 0)
        return status;
    if (request->model.ptr == NULL)
        request->model = parse->default_model;
    if ((status = keep(parse->arena, &request->model)) < 0 ||
        (status = keep(parse->arena, &request->previous_response_id)) < 0 ||
        (status = keep(parse->arena, &request->session_key)) < 0)
        return status;
    return 0;
}

static int name_prompt(struct body_parse *parse)
{
    struct prompt_stream_config config = {parse->secret, STREAM_BLOCK_BYTES, STREAM_CUT_BYTES_MIN,
                                          TOOLS_FIRST};

    if (parse->request.model.ptr == NULL) /* every name depends on it */
        return -ENOENT;
    /* What leaves no prompt behind, or goes on from text that only an engine has, has no names. */
    if (api_work(parse->api) != API_WORK_GENERATE || parse->request.continues_state)
        return 0;
    parse->has_tools = parse->request.api != API_COMPLETIONS &&
                       json_count(json_get(parse->request.root, "tools")) > 0;
    if (parse->has_tools)
        parse->layout = tool_places_find(parse->tool_places, parse->secret, parse->request.model);
    config.tool_place = parse->layout.place;
    return prompt_stream_write(config, &parse->request, parse->arena, BODY_PARSE_BLOCK_COUNT_MAX,
                               &parse->prompt, &parse->fault);
}

/* Without a plan nothing is lost but an anchor. */
static void plan_anchor(struct body_parse *parse)
{
    if (anchor_plan_make(parse->secret, &parse->request, &parse->prompt, parse->arena,
                         &parse->plan) < 0)
        parse->plan = (struct anchor_plan){.why_not = ANCHOR_BUSY};
}

void body_parse_run(struct body_parse *parse, struct json_scanner *scanner)
{
    parse->plan = (struct anchor_plan){.why_not = ANCHOR_API};
    parse->request_status = read_request(parse, scanner);
    if (parse->request_status == 0)
        parse->prompt_status = name_prompt(parse);
    if (parse->prompt_status == -ENOBUFS) /* of its end nothing is known */
        parse->plan.why_not = ANCHOR_LONG;
    if (parse->wants_plan && parse->request_status == 0 && parse->prompt_status == 0)
        plan_anchor(parse);
    parse->request.root = (struct json_value){0};
    json_scanner_trim(scanner);
}
