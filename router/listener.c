/* SPDX-License-Identifier: Apache-2.0 */

#include "router/listener.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>

#include "backends/runtime/log.h"
#include "router/client_conn.h"
#include "router/endpoint.h"
#include "router/relay.h"

enum { BACKLOG = 1024, ADDRESS_BYTES_MAX = 64 };

static void refuse(struct listener *listener);

static void on_refused_closed(uv_handle_t *handle)
{
    struct listener *listener = handle->data;

    listener->is_refused_busy = false;
    if (listener->has_refused && listener->is_open)
        refuse(listener);
}

/* libuv hands over no further connection before this one is taken, so it must be, if only to be
 * closed. */
static void refuse(struct listener *listener)
{
    listener->has_refused = listener->is_refused_busy;
    if (listener->is_refused_busy)
        return;
    listener->is_refused_busy = true;
    uv_tcp_init(listener->tcp.loop, &listener->refused);
    listener->refused.data = listener;
    (void)uv_accept((uv_stream_t *)&listener->tcp, (uv_stream_t *)&listener->refused);
    uv_close((uv_handle_t *)&listener->refused, on_refused_closed);
}

static void on_connection(uv_stream_t *stream, int status)
{
    struct listener *listener = stream->data;
    struct relay *relay = listener->relay;
    struct client_conn *conn;

    if (status < 0) { /* out of descriptors: libuv has closed the connection */
        relay_warn_descriptors(relay, "client");
        relay->stats.client_connections_refused_total++;
        return;
    }
    conn = client_conn_accept(relay, listener->endpoints, stream);
    if (conn == NULL) {
        relay->stats.client_connections_refused_total++;
        refuse(listener);
    } else if (!listener->endpoints->is_admin &&
               relay->clients.count > relay->config.client_count_max) {
        relay->stats.client_connections_refused_total++;
        client_conn_kill(conn);
    }
}

/* The first address of host; names resolve here, blocking, at boot. */
static int resolve(struct listener_config config, struct sockaddr_storage *address, char why[256])
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    struct addrinfo *found = NULL;
    char port[8];
    int status;

    snprintf(port, sizeof port, "%u", config.port);
    status = getaddrinfo(config.host, port, &hints, &found);
    if (status != 0) {
        snprintf(why, 256, "cannot listen on '%s': %s", config.host, gai_strerror(status));
        return -EADDRNOTAVAIL;
    }
    memcpy(address, found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    return 0;
}

static void log_address(struct listener *listener, const char *event)
{
    struct sockaddr_storage bound;
    char address[ADDRESS_BYTES_MAX] = "";
    int len = sizeof bound;
    uint16_t port = 0;

    if (uv_tcp_getsockname(&listener->tcp, (struct sockaddr *)&bound, &len) < 0)
        return;
    if (bound.ss_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)&bound;

        uv_ip6_name(in6, address, sizeof address);
        port = ntohs(in6->sin6_port);
    } else {
        const struct sockaddr_in *in4 = (const struct sockaddr_in *)&bound;

        uv_ip4_name(in4, address, sizeof address);
        port = ntohs(in4->sin_port);
    }
    LOG(LOG_INFO, event, log_text("address", address), log_u64("port", port));
}

int listener_open(struct listener *listener, struct relay *relay,
                  const struct endpoint_table *endpoints, struct listener_config config,
                  char why[256])
{
    struct sockaddr_storage address;
    int status = resolve(config, &address, why);

    if (status < 0)
        return status;
    listener->relay = relay;
    listener->endpoints = endpoints;
    status = uv_tcp_init(&relay->io->loop, &listener->tcp);
    if (status == 0) {
        listener->is_open = true;
        listener->tcp.data = listener;
        status = uv_tcp_bind(&listener->tcp, (const struct sockaddr *)&address, 0);
    }
    if (status == 0)
        status = uv_listen((uv_stream_t *)&listener->tcp, BACKLOG, on_connection);
    if (status < 0) {
        snprintf(why, 256, "cannot listen on %s port %u: %s%s", config.host, config.port,
                 uv_strerror(status),
                 status == UV_EADDRINUSE ? "; another process has it: choose another port" : "");
        listener_close(listener);
        return status;
    }
    log_address(listener, config.event);
    return 0;
}

void listener_close(struct listener *listener)
{
    if (!listener->is_open)
        return;
    listener->is_open = false;
    uv_close((uv_handle_t *)&listener->tcp, NULL);
}
