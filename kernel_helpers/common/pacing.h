/* Connections to neighbours are not paced.
 *
 * A congestion control that paces (bbr) spreads packets over time by a timer: through a fast cable that costs most of its rate, and a
 * connection that was paced once stays so, whatever it is given afterwards. So it is kept from one whose peer may turn out to be near. */
#ifndef FARHOME_PACING_H
#define FARHOME_PACING_H

/* Before connect() or listen(), where the machine's own choice would pace. */
void farhome_unpaced(int socket);
/* A connection on which something has gone both ways: the machine's own choice after all, where the peer is far. */
void farhome_settle_pace(int socket);

#endif
