// Package crowding holds bounds on tables that only tests set, to crowd them: then few keys
// meet cases that else take very many. New reads them once for each limiter.
package crowding

import "math"

// Homes is how many slots of a table are homes, where probes begin, at most. If it is set, a
// power of two, all keys are in one shard. Only tables that are Built for that heed it.
var Homes uint64 = math.MaxUint64

// IDs is how many ids a table has, at most, before it is split.
var IDs = math.MaxInt
