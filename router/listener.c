/* SPDX-License-Identifier: Apache-2.0 */

#include "router/listener.h"

#include "backends/tcp_listen.h"
#include "router/client_conn.h"
#include "router/endpoint.h"
#include "router/relay.h"

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

int listener_open(struct listener *listener, struct relay *relay,
                  const struct endpoint_table *endpoints, struct listener_config config,
                  char why[256])
{
    struct tcp_listen_config listen = {config.host, config.port, config.event};
    int status = tcp_listen(&listener->tcp, &relay->io->loop, listen, on_connection, why);

    if (status < 0)
        return status;
    listener->relay = relay;
    listener->endpoints = endpoints;
    listener->is_open = true;
    listener->tcp.data = listener;
    return 0;
}

void listener_close(struct listener *listener)
{
    if (!listener->is_open)
        return;
    listener->is_open = false;
    uv_close((uv_handle_t *)&listener->tcp, NULL);
}
