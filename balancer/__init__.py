"""Load vectors, gossip, lending policy and decisions: pure logic, where clock and random numbers are parameters.

How a node daemon uses it, with one clock (monotonic seconds) and one rng for all:

* ten times a second ``LoadEstimator.sample``, with the threads in state R that are not the daemon's own; after it
  ``Gossip.update_self(estimator.vector(...))``, with any incarnation that grows with restarts;
* when ``Gossip.due`` has come, or ten times a second: send every (peer, datagram) of ``Gossip.tick``, and of
  ``Gossip.receive`` what comes; ``Gossip.learn`` a seed as soon as its name is known; ``Gossip.leave`` at the end;
* after each ``decide.next_interval``: ``decide.decide(gossip.known.view(), processes, now, rng, settings)``; a Decision with a
  target is carried out, all are recorded in the Journal, for ``mosctl why``; after a refusal ``Process.not_before`` is set ahead by
  ``admission.retry_after``; for one that is to be placed, each of ``placement.placings`` until a node takes it;
* on the target: ``LendingPolicy.admits``, for a balancer's move ``admission.recheck`` too, then ``LoadEstimator.inflate``
  at once (``relieve`` if the guest does not come, or goes); on the source ``inflate`` for a process that begins or comes home, ``relieve``
  when it has left, ``end`` when it has ended; ``Gossip.note`` of a target that is asked, ``correct`` to a home that is refused;
* ``Settings.cost`` is replaced by ``cost.learn(lost, taken, bytes)`` after each move.
"""
