/* The pool scope of kvcheck in Promela, for spin: kvcheck/explorer/pool.py without symmetry. FREE (blocks beside the null
   block), REQUESTS and COLUMNS are defined on the command line by benchmarks/pool_scope.py. Blocks, requests and columns count
   from 1; 0 is none. */

#define AT(h, c) held[((h) - 1) * COLUMNS + (c) - 1]
#define HOLDER(c, i) holders[((c) - 1) * FREE + (i) - 1]
#define QUEUE(i) queue[(i) - 1]

byte queue[FREE];
byte queued;
byte held[REQUESTS * COLUMNS];
byte size[REQUESTS];
byte published[REQUESTS];
byte holders[COLUMNS * FREE];
byte holding[COLUMNS];

/* not part of the state */
hidden byte c, g, b, name, count, many;
hidden byte found;
hidden byte kept[COLUMNS];

inline count_references(x) {
  count = 0; g = 1;
  do
  :: g <= REQUESTS * COLUMNS -> if :: held[g - 1] == x -> count++ :: else fi; g++
  :: else -> break
  od
}

inline find_name(x) {
  name = 0; g = 1;
  do
  :: g <= COLUMNS * FREE -> if :: holders[g - 1] == x -> name = (g - 1) / FREE + 1 :: else fi; g++
  :: else -> break
  od
}

inline unname(x) {
  find_name(x);
  if
  :: name > 0 ->
    found = 0; g = 1;
    do
    :: g <= FREE ->
      if :: HOLDER(name, g) == x -> found = 1 :: else fi;
      if :: found && g < FREE -> HOLDER(name, g) = HOLDER(name, g + 1)
         :: found && g == FREE -> HOLDER(name, g) = 0
         :: else
      fi;
      g++
    :: else -> break
    od;
    holding[name - 1]--
  :: else
  fi
}

inline give_name(x, column) { holding[column - 1]++; HOLDER(column, holding[column - 1]) = x }

inline append(x) { queued++; QUEUE(queued) = x }

inline prepend(x) {
  g = FREE;
  do
  :: g > 1 -> QUEUE(g) = QUEUE(g - 1); g--
  :: else -> break
  od;
  QUEUE(1) = x; queued++
}

inline unqueue(x) {
  found = 0; g = 1;
  do
  :: g <= FREE ->
    if :: QUEUE(g) == x -> found = 1 :: else fi;
    if :: found && g < FREE -> QUEUE(g) = QUEUE(g + 1)
       :: found && g == FREE -> QUEUE(g) = 0
       :: else
    fi;
    g++
  :: else -> break
  od;
  if :: found -> queued-- :: else fi
}

inline next() { b = QUEUE(1); unqueue(b); unname(b) }

inline take(h) { next(); size[h - 1]++; AT(h, size[h - 1]) = b }

inline publish(h) { published[h - 1]++; give_name(AT(h, published[h - 1]), published[h - 1]) }

inline copy(h) {
  next();
  find_name(AT(h, size[h - 1])); many = name;
  unname(AT(h, size[h - 1]));
  give_name(b, many);
  append(b)
}

inline hit(h) {
  c = 1;
  do
  :: c <= COLUMNS ->
    if :: size[h - 1] == c - 1 && holding[c - 1] > 0 -> size[h - 1] = c; AT(h, c) = HOLDER(c, 1) :: else fi;
    c++
  :: else -> break
  od;
  c = 1;
  do
  :: c <= size[h - 1] -> unqueue(AT(h, c)); c++
  :: else -> break
  od;
  published[h - 1] = size[h - 1]
}

inline give_back(h) {
  c = 1;
  do
  :: c <= COLUMNS -> kept[c - 1] = AT(h, c); AT(h, c) = 0; c++
  :: else -> break
  od;
  many = size[h - 1]; size[h - 1] = 0; published[h - 1] = 0;
  c = 1;
  do
  :: c <= many ->
    find_name(kept[c - 1]); count_references(kept[c - 1]);
    if :: name == 0 && count == 0 -> prepend(kept[c - 1]) :: else fi;
    c++
  :: else -> break
  od;
  c = many;
  do
  :: c > 0 ->
    find_name(kept[c - 1]); count_references(kept[c - 1]);
    if :: name > 0 && count == 0 -> append(kept[c - 1]) :: else fi;
    c--
  :: else -> break
  od
}

inline clear() {
  c = 1;
  do
  :: c <= COLUMNS * FREE -> holders[c - 1] = 0; c++
  :: else -> break
  od;
  c = 1;
  do
  :: c <= COLUMNS -> holding[c - 1] = 0; c++
  :: else -> break
  od
}

/* guards cannot loop: up to 8 blocks and 3 requests are written out */
#define HAS(column, n, x) (n <= FREE && HOLDER(column, (n <= FREE -> n : 1)) == x)
#define NAMED(column, x) \
  (HAS(column, 1, x) || HAS(column, 2, x) || HAS(column, 3, x) || HAS(column, 4, x) || HAS(column, 5, x) || \
   HAS(column, 6, x) || HAS(column, 7, x) || HAS(column, 8, x))
#define NOT_IN(o, h, column, x) (o > REQUESTS || o == h || AT((o <= REQUESTS -> o : 1), column) != x)
#define ALONE(h, column, x) (NOT_IN(1, h, column, x) && NOT_IN(2, h, column, x) && NOT_IN(3, h, column, x))
#define LAST(h) AT(h, size[h - 1])

#define MOVES(h) \
  :: d_step { queued > 0 && size[h - 1] < COLUMNS -> take(h); skip } \
  :: d_step { published[h - 1] < size[h - 1] -> publish(h); skip } \
  :: d_step { size[h - 1] > 0 && published[h - 1] == size[h - 1] && queued > 0 \
       && NAMED(size[h - 1], LAST(h)) && ALONE(h, size[h - 1], LAST(h)) -> copy(h); skip } \
  :: d_step { size[h - 1] == 0 && holding[0] > 0 -> hit(h); skip } \
  :: d_step { size[h - 1] > 0 -> give_back(h); skip }

#define KEYS (holding[0] > 0 || (COLUMNS > 1 && holding[(COLUMNS > 1 -> 1 : 0)] > 0) \
  || (COLUMNS > 2 && holding[(COLUMNS > 2 -> 2 : 0)] > 0))

init {
  d_step {
    c = 1;
    do
    :: c <= FREE -> QUEUE(c) = c; c++
    :: else -> break
    od;
    queued = FREE
  }
  do
  MOVES(1)
#if REQUESTS > 1
  MOVES(2)
#endif
#if REQUESTS > 2
  MOVES(3)
#endif
  :: d_step { queued == FREE && KEYS -> clear(); skip }
  od
}
