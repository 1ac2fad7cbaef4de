/* A key moves between its shard's table and cells of its own (cells.go), while calls decide
 * about it. One key, one shard, a one-word algorithm.
 *
 *   locate, put              cells.go
 *   place, SetLimit          move.go
 *   charge                   decide.go
 *   insert, fill, rebuild    insert.go, rebuild.go
 *   update, Peek             update.go, peek.go
 *
 * A step is at most one access to an atomic that others can see. The word of a key is the set
 * of those who have charged it. The ghost adm is that set as it should be, so every charge
 * that was lost, and every one that was made twice, fails an assertion.
 *
 * Faults, each of which a run must find (see check):
 * F1 the slot says elsewhere before the cell is there   F2 locate believes a table of the past
 * F3 insert does not look again under the lock          F4 a rebuild drops the cell first
 * F5 a key is placed without its word being taken out
 */
#define MOVED 255
#define ELSEWHERE 254
#define NT 8  /* tables */
#define NC 11 /* cells; 0 is none */
#define NP 8  /* tables of cells */
/* policies: the limiter's first and second limit, SetKeyLimit's, one that a call brings */
#define FIRST 0
#define SECOND 1
#define OWN 2
#define BROUGHT 3
#define NOBODYS 9
/* where a key is: untracked, in the table, in a cell, in a cell without state */
#define NONE 0
#define TABLE 1
#define CELL 2
#define EMPTY 3

#ifndef MOVES
#define MOVES 2
#endif

typedef Table { bit has; byte word; byte pol }
typedef Cell { byte word; byte pol; bit kept }
Table tab[NT]; byte cur; byte tabs = 1;
Cell cell[NC]; byte cells;
byte place[NP]; byte ct; byte cts;
byte common = FIRST;
bit mu;
byte adm;

#define lock()   atomic { mu == 0 -> mu = 1 }
#define unlock() mu = 0

/* at most one word of the key is live */
inline live() { d_step {
  n = 0; x = 0;
  do :: x < NT -> if :: tab[x].has && tab[x].word < ELSEWHERE -> n++ :: else fi; x++ :: else -> break od;
  x = 1;
  do :: x < NC -> if :: x <= cells && cell[x].word < ELSEWHERE && cell[x].word > 0 -> n++ :: else fi; x++ :: else -> break od;
  assert(n <= 1); n = 0; x = 0 } }

inline locate() {
  do
  :: t = cur;
     if
     :: atomic { tab[t].has && tab[t].word != ELSEWHERE -> kind = TABLE; at = t; pol = tab[t].pol; break }
     :: atomic { !tab[t].has || tab[t].word == ELSEWHERE -> skip }
     fi;
     c = ct; /* the table of cells */
     c = place[c];
     if
     :: atomic { c != 0 && cell[c].word != ELSEWHERE -> kind = CELL; at = c; pol = cell[c].pol; c = 0; break }
     :: atomic { c != 0 && cell[c].word == ELSEWHERE -> kind = EMPTY; at = c; pol = cell[c].pol; c = 0; break }
     :: c == 0
     fi;
#ifndef F2
     if
     :: atomic { cur == t -> kind = NONE; pol = tab[t].pol; break }
     :: atomic { cur != t -> t = 0 }
     fi
#else
     atomic { kind = NONE; pol = tab[t].pol; break }
#endif
  od }

/* with the lock: puts a cell where the key has none, or in its place */
inline put(w_, pol_, kept_) {
  atomic { assert(cells < NC - 1); cell[cells + 1].word = w_; cell[cells + 1].pol = pol_; cell[cells + 1].kept = kept_ }
  if
  :: place[ct] == 0 -> atomic { assert(cts < NP - 1); cts++; ct = cts } /* a larger table */
  :: skip
  fi;
  atomic { cells++; place[ct] = cells } }

/* with the lock: the key is counted as one of the table's */
inline mark() { if :: atomic { !tab[cur].has -> tab[cur].word = ELSEWHERE; tab[cur].has = 1 } :: atomic { tab[cur].has -> skip } fi }

/* with the lock: placeLocked */
inline placeKey(pol_, keep_) {
  atomic {
    c = place[ct]; w = ELSEWHERE;
    intable = tab[cur].has && tab[cur].word != ELSEWHERE;
    counted = intable || (c != 0 && !cell[c].kept) }
  atomic {
    if
    :: c != 0 -> w = cell[c].word;
#ifndef F5
       cell[c].word = MOVED
#endif
    :: c == 0 && intable -> w = tab[cur].word;
#ifndef F5
       tab[cur].word = MOVED
#endif
    :: else
    fi }
  if
  :: !(keep_) && w == ELSEWHERE -> place[ct] = 0 /* forgetLocked */
  :: else ->
#ifdef F1
     if :: intable -> tab[cur].word = ELSEWHERE :: else fi;
#endif
     put(w, pol_, keep_);
     live();
     if :: intable -> tab[cur].word = ELSEWHERE :: else fi;
     if :: !(keep_) && !counted -> mark() :: else fi
  fi;
  atomic { c = 0; w = 0; intable = 0; counted = 0 } }

/* me charges under the key's own policy, or one that it brings */
proctype Charger(byte me; byte want) {
  byte t, c, at, pol, kind, p, w, n, x, tm; bit intable, counted, keeps;
start:
  /* policyFor */
  do
  :: locate();
     atomic {
       if
       :: want != NOBODYS -> tm = want
       :: want == NOBODYS && (kind == NONE || kind == TABLE) -> tm = pol
       :: want == NOBODYS && (kind == CELL || kind == EMPTY) -> if :: cell[at].kept -> tm = OWN :: else -> tm = common fi
       fi;
       if :: pol == tm || kind == NONE -> p = tm; tm = 0; t = 0; at = 0; break :: else fi }
     if :: cells >= NC - 5 -> goto done :: else fi; /* two that bring limits may go on like this for ever */
     lock();
     locate();
     atomic { keeps = (kind == CELL || kind == EMPTY) && cell[at].kept }
     if :: pol != tm && kind != NONE -> placeKey(tm, keeps) :: else fi;
     atomic { unlock(); keeps = 0; tm = 0; t = 0; at = 0 }
  od;
  /* charge */
  do
  :: locate();
     if
     :: (kind == NONE || kind == EMPTY) ->
        lock();
#ifndef F3
        locate();
#endif
        if
        :: kind == TABLE || kind == CELL || !(pol == p || (kind == NONE && p >= OWN)) ->
           atomic { unlock(); t = 0; at = 0; goto start }
        :: else ->
           if
           :: kind == EMPTY ->
              keeps = cell[at].kept; /* fillLocked: never a larger table, since a cell is replaced */
              atomic { cells++; cell[cells].word = me; cell[cells].pol = p; cell[cells].kept = keeps; place[ct] = cells; assert(adm == 0); adm = me }
              live();
              cell[at].word = MOVED
           :: kind == NONE && !tab[cur].has && tab[cur].pol == p ->
              atomic { tab[cur].word = me; tab[cur].has = 1; assert(adm == 0); adm = me }
              live()
           :: else ->
              atomic { assert(cells < NC - 1); cell[cells + 1].word = me; cell[cells + 1].pol = p; cell[cells + 1].kept = 0 }
              if :: place[ct] == 0 -> atomic { assert(cts < NP - 1); cts++; ct = cts } :: skip fi;
              atomic { cells++; place[ct] = cells; assert(adm == 0); adm = me }
              live();
              mark()
           fi;
           unlock();
           goto done
        fi
     :: else -> skip
     fi;
     if :: pol != p -> atomic { t = 0; at = 0; goto start } :: else fi;
     do
     :: atomic { w = (kind == TABLE -> tab[at].word : cell[at].word); if :: w >= ELSEWHERE -> w = 0; break :: else fi }
        atomic {
          if
          :: w == (kind == TABLE -> tab[at].word : cell[at].word) ->
             assert(adm == w);
             if :: kind == TABLE -> tab[at].word = w | me :: else -> cell[at].word = w | me fi;
             adm = adm | me; w = 0; goto done
          :: else -> w = 0
          fi }
     od;
     lock(); atomic { unlock(); t = 0; at = 0 } /* awaitMove */
  od;
progress_done:
done: atomic { t = 0; c = 0; at = 0; pol = 0; kind = 0; p = 0; tm = 0; keeps = 0 }
}

/* Peek; and Refund or Reset, which charge a key that is tracked */
proctype Reader(byte me) {
  byte t, c, at, pol, kind, w, was;
start:
  was = adm;
  do
  :: locate();
     if :: atomic { kind == NONE || kind == EMPTY -> assert(was == 0); goto done } :: else fi;
     do
     :: atomic { w = (kind == TABLE -> tab[at].word : cell[at].word); if :: w >= ELSEWHERE -> w = 0; break :: else -> assert((w & was) == was) fi }
        if
        :: me == 0 -> goto done
        :: else ->
           atomic {
             if
             :: w == (kind == TABLE -> tab[at].word : cell[at].word) ->
                assert(adm == w);
                if :: kind == TABLE -> tab[at].word = w | me :: else -> cell[at].word = w | me fi;
                adm = adm | me; goto done
             :: else -> w = 0
             fi }
        fi
     od;
     lock(); atomic { unlock(); t = 0; at = 0 }
  od;
progress_done:
done: atomic { t = 0; c = 0; at = 0; pol = 0; kind = 0; w = 0; was = 0 }
}

proctype Admin() { /* SetKeyLimit, ClearKeyLimit */
  byte c, w, n, x, m; bit intable, counted;
  do
  :: m < MOVES ->
     lock();
     if
     :: placeKey(OWN, 1)
     :: if :: place[ct] != 0 && cell[place[ct]].kept -> placeKey(common, 0) :: else fi
     fi;
     atomic { unlock(); m++ }
  :: else -> break
  od
}

/* with the lock: a table of that policy, with the key or its mark */
inline rebuild(pol_, back_) {
  atomic { new = tabs; assert(tabs < NT); tab[new].pol = pol_; b = 0 }
  if
  :: tab[cur].has && tab[cur].word == ELSEWHERE ->
     c = place[ct];
     if
     :: c != 0 && !cell[c].kept && back_ ->
        atomic { w = cell[c].word; cell[c].word = MOVED }
        if
        :: cell[c].pol == pol_ -> atomic { tab[new].word = w; tab[new].has = 1; b = c }
#ifdef F4
           place[ct] = 0;
#endif
        :: else -> atomic { tab[new].word = ELSEWHERE; tab[new].has = 1 } cell[c].word = w
        fi
     :: c != 0 && !cell[c].kept && !(back_) -> atomic { tab[new].word = ELSEWHERE; tab[new].has = 1 }
     :: else
     fi
  :: tab[cur].has && tab[cur].word != ELSEWHERE ->
     atomic { w = tab[cur].word; tab[cur].word = MOVED; tab[new].word = w; tab[new].has = 1 }
  :: else
  fi;
  atomic { tabs++; cur = new }
  live();
  if :: b != 0 -> place[ct] = 0 :: else fi;
  atomic { b = 0; c = 0; w = 0; new = 0 } }

proctype Growth() {
  byte c, w, n, x, b, new; bit intable, counted;
  lock(); rebuild(tab[cur].pol, 1); unlock()
}

proctype SetLimit() {
  byte c, w, n, x, b, new; bit intable, counted, keeps;
  common = SECOND;
  lock();
  rebuild(SECOND, 0);
  if
  :: place[ct] != 0 && cell[place[ct]].pol < OWN -> keeps = cell[place[ct]].kept; placeKey(SECOND, keeps)
  :: else
  fi;
  unlock()
}

init { atomic {
  run Charger(1, NOBODYS);
#ifdef TWO
  run Charger(2, NOBODYS);
#endif
#ifdef BRINGS
  run Charger(4, BROUGHT);
#endif
#ifdef PEEK
  run Reader(0);
#endif
#ifdef UPDATE
  run Reader(8);
#endif
#ifdef GROW
  run Growth();
#endif
#ifdef LIMIT
  run SetLimit();
#endif
  run Admin() } }
