-- The pool scope of kvcheck in Murphi, for rumur: kvcheck/explorer/pool.py without symmetry. BLOCKS, REQUESTS and COLUMNS
-- are set by benchmarks/pool_scope.py.

const
  FREE: @FREE@;     -- blocks beside the null block
  REQUESTS: @REQUESTS@;
  COLUMNS: @COLUMNS@;

type
  place: 0 .. FREE;
  block: 0 .. FREE;      -- 0: none
  request: 1 .. REQUESTS;
  column: 1 .. COLUMNS;
  length: 0 .. COLUMNS;

var
  queue: array [1 .. FREE] of block;
  queued: place;
  held: array [request] of array [column] of block;
  long: array [request] of length;
  published: array [request] of length;
  holders: array [column] of array [1 .. FREE] of block;
  holding: array [column] of place;

function references(b: block): place;
var count: 0 .. FREE;
begin
  count := 0;
  for h: request do for c: column do if held[h][c] = b then count := count + 1; end; end; end;
  return count;
end;

function name_of(b: block): length;
begin
  for c: column do for i := 1 to FREE do if holders[c][i] = b then return c; end; end; end;
  return 0;
end;

procedure unname(b: block);
var c: length; found: boolean;
begin
  c := name_of(b);
  if c != 0 then
    found := false;
    for i := 1 to FREE do
      if holders[c][i] = b then found := true; end;
      if found then if i < FREE then holders[c][i] := holders[c][i + 1]; else holders[c][i] := 0; end; end;
    end;
    holding[c] := holding[c] - 1;
  end;
end;

procedure give_name(b: block; c: column);
begin
  holding[c] := holding[c] + 1;
  holders[c][holding[c]] := b;
end;

procedure append(b: block);
begin
  queued := queued + 1;
  queue[queued] := b;
end;

procedure prepend(b: block);
begin
  for i := 1 to FREE - 1 do queue[FREE + 1 - i] := queue[FREE - i]; end;
  queue[1] := b;
  queued := queued + 1;
end;

procedure unqueue(b: block);
var found: boolean;
begin
  found := false;
  for i := 1 to FREE do
    if queue[i] = b then found := true; end;
    if found then if i < FREE then queue[i] := queue[i + 1]; else queue[i] := 0; end; end;
  end;
  if found then queued := queued - 1; end;
end;

procedure next(var b: block);
begin
  b := queue[1];
  unqueue(b);
  unname(b);
end;

startstate
begin
  for i := 1 to FREE do queue[i] := i; end;
  queued := FREE;
  for h: request do
    for c: column do held[h][c] := 0; end;
    long[h] := 0;
    published[h] := 0;
  end;
  for c: column do
    for i := 1 to FREE do holders[c][i] := 0; end;
    holding[c] := 0;
  end;
end;

ruleset h: request do

  rule "take" queued > 0 & long[h] < COLUMNS ==>
  var b: block;
  begin
    next(b);
    long[h] := long[h] + 1;
    held[h][long[h]] := b;
  end;

  rule "publish" published[h] < long[h] ==>
  begin
    published[h] := published[h] + 1;
    give_name(held[h][published[h]], published[h]);
  end;

  rule "copy" long[h] > 0 & published[h] = long[h] & queued > 0 & name_of(held[h][long[h]]) != 0
    & references(held[h][long[h]]) = 1 ==>
  var b: block; c: length;
  begin
    next(b);
    c := name_of(held[h][long[h]]);
    unname(held[h][long[h]]);
    give_name(b, c);
    append(b);
  end;

  rule "hit" long[h] = 0 & holding[1] > 0 ==>
  begin
    for c: column do
      if long[h] = c - 1 & holding[c] > 0 then
        long[h] := c;
        held[h][c] := holders[c][1];
      end;
    end;
    for c: column do if c <= long[h] then unqueue(held[h][c]); end; end;
    published[h] := long[h];
  end;

  rule "give back" long[h] > 0 ==>
  var kept: array [column] of block; many: length; b: block;
  begin
    for c: column do kept[c] := held[h][c]; held[h][c] := 0; end;
    many := long[h];
    long[h] := 0;
    published[h] := 0;
    -- without a key: the first column first, so that the last one ends up in front
    for c: column do
      if c <= many & name_of(kept[c]) = 0 & references(kept[c]) = 0 then prepend(kept[c]); end;
    end;
    for i := 1 to COLUMNS do
      b := kept[COLUMNS + 1 - i];
      if b != 0 & name_of(b) != 0 & references(b) = 0 then append(b); end;
    end;
  end;

end;

rule "reset" queued = FREE & (exists c: column do holding[c] > 0 end) ==>
begin
  for c: column do
    for i := 1 to FREE do holders[c][i] := 0; end;
    holding[c] := 0;
  end;
end;

invariant "no block is lost"
  forall b: 1 .. FREE do (references(b) > 0) != (exists i: 1 .. FREE do queue[i] = b end) end;
