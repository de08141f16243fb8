/* The step protocol, written down a second time and searched by spin: the twin of the search of the real code.
 *
 * Ranks agree on each step by a row to each peer, join one device collective, and tell their peers when they
 * fail. Faults as in explore.py: a crash, a late rank, a model that fails, a refusal; at most one of each.
 * MUTANT, from the environment when the verifier runs, seeds one fault of the protocol; 0 is none.
 */
#ifndef N
#define N 2
#endif
#define STEPS 2
#define PAIR(a, b) ((a) * N + (b))

c_decl { \#include <stdlib.h> }

mtype = { STEP, FAILED };           /* what a row says */
mtype = { NONE, SERVED, REFUSED, STOPPED };

byte mutant;
chan wire[N * N] = [4] of { mtype, byte, bool };   /* kind, how often agreed before, can it replay */
bool dead[N], closed[N], device_closed[N];
byte joined[N];                     /* collectives that a rank has joined */
byte step_of[N * 8];                /* the step in which it joined each, plus one */
mtype result[N * STEPS];
byte crashes, late, failures, refusals;   /* how many more may happen */
bool calm = true;                   /* nothing has happened that may stop a rank */

#define GONE(j) (dead[j] || closed[j])

inline may_die() { crashes > 0; crashes--; calm = false; dead[me] = true; goto over }

inline tell(what, can) {
  atomic {
    peer = 0;
    do
    :: peer == N -> break
    :: peer == me -> peer++
    :: peer < N && peer != me ->
         if
         :: !closed[me] && !GONE(peer) -> wire[PAIR(me, peer)]!what, sequence, can
         :: else
         fi;
         peer++
    od;
    sequence++; peer = 0
  }
}

/* One row of each peer, or its loss. */
inline hear(number) {
  lost = false; ran_out = false; others_fail = false; others_able = true; others_differ = false;
  peer = 0;
  do
  :: peer == N -> break
  :: peer == me -> peer++
  :: peer < N && peer != me ->
       if
       :: closed[me] -> lost = true
       :: !closed[me] && nempty(wire[PAIR(peer, me)]) ->
            wire[PAIR(peer, me)]?kind, theirs, able;
            others_fail = others_fail || kind == FAILED;
            others_able = others_able && able;
            others_differ = others_differ || theirs != number
       :: !closed[me] && GONE(peer) -> lost = true
       :: !closed[me] && late > 0 -> late--; calm = false; lost = true; ran_out = true; closed[me] = true
       :: !closed[me] && timeout -> lost = true; ran_out = true; closed[me] = true
       :: may_die()
       fi;
       peer++
  od;
  peer = 0; kind = 0; theirs = 0; able = false
}

inline join() {
  d_step {
    step_of[me * 8 + joined[me]] = step + 1;
    mine = joined[me];
    joined[me]++;
    peer = 0;
    do
    :: peer == N -> break
    :: peer < N ->
         assert(joined[peer] <= mine || step_of[peer * 8 + mine] == step + 1);
         peer++
    od;
    lost = false; peer = 0
  }
  do
  :: peer == N -> break
  :: peer < N ->
       if
       :: joined[peer] > mine -> peer++
       :: peer != me && (dead[peer] || device_closed[peer]) && mutant != 6 -> lost = true; break
       :: joined[peer] <= mine && late > 0 && mutant != 6 -> late--; calm = false; lost = true; break
       :: joined[peer] <= mine && timeout && mutant != 6 -> lost = true; break
       :: may_die()
       fi
  od;
  device_closed[me] = device_closed[me] || lost; peer = 0
}

/* What a result may be next to those of the other ranks, and of earlier steps. */
inline judge(found) {
  d_step {
    result[me * STEPS + step] = found;
    assert(found != STOPPED || !calm);
    peer = 0;
    do
    :: peer == N -> break
    :: peer < N ->
         assert(found != SERVED || result[peer * STEPS + step] != REFUSED);
         assert(found != REFUSED || result[peer * STEPS + step] != SERVED);
         assert(found != SERVED || step == 0 || result[peer * STEPS] != STOPPED);
         peer++
    od;
    peer = 0
  }
}

inline stop(tells) {
  if
  :: tells && mutant != 5 -> tell(FAILED, false); hear(sequence - 1)
  :: else
  fi;
  judge(STOPPED);
  goto over
}

proctype Rank(byte me) {
  byte peer, step, sequence, mine, theirs;
  mtype kind;
  bool able, fits, lost, ran_out, fails, others_fail, others_able, others_differ;

  do
  :: step == STEPS -> break
  :: step < STEPS ->
       fits = true; fails = false;
       if
       :: refusals > 0 -> refusals--; fits = false
       :: true
       fi;
       if
       :: !fits && mutant == 1 -> judge(REFUSED); step++
       :: else ->
            tell(STEP, fits);
            hear(sequence - 1);
            if
            :: lost && mutant != 4 -> stop(!ran_out)
            :: (others_fail || others_differ) && mutant != 4 -> stop(false)
            :: else
            fi;
            if
            :: !fits || (!others_able && mutant != 2) -> judge(REFUSED)
            :: else ->
                 if
                 :: failures > 0 -> failures--; calm = false; fails = true
                 :: true
                 fi;
                 if
                 :: fails -> stop(true)
                 :: else
                 fi;
                 join();
                 if
                 :: !lost && mutant == 3 && me == 0 -> join()
                 :: else
                 fi;
                 if
                 :: lost -> stop(true)
                 :: else -> judge(SERVED)
                 fi
            fi;
            step++
       fi
  od;
over:
  skip
}

init {
  byte rank;
  c_code { now.mutant = getenv("MUTANT") ? atoi(getenv("MUTANT")) : 0; };
  atomic {
    if :: crashes = 0 :: crashes = 1 fi;   /* with none left, waits run out only where nothing else happens */
    if :: late = 0 :: late = 1 fi;
    if :: failures = 0 :: failures = 1 fi;
    if :: refusals = 0 :: refusals = 1 fi;
    for (rank : 0 .. N - 1) { run Rank(rank) }
  }
}
