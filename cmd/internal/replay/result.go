package replay

import "time"

// Result is the result of a replay. Times are in nanoseconds since 1970.
type Result struct {
	Requests int64
	Clients  int
	Private  bool  // every client has a private address, or none at all
	First    int64 // earliest time of a request
	Last     int64 // latest time of a request
	// Late counts the requests earlier than one before them, which were decided
	// at the later time, and MaxLate is the furthest that one was behind.
	Late    int64
	MaxLate time.Duration
	Rules   []RuleResult // in the order given to New

	Changes *Changes // nil without Compare
	// The columns of all the OverTime counts, here and in Rules and Changes, are Width wide.
	// The first starts at Start, a whole multiple of Width. There are at least
	// one and at most 60.
	Start    int64
	Width    time.Duration
	OverTime []int64 // requests
}

// RuleResult is the result of one rule.
type RuleResult struct {
	Rule            Rule
	Allowed         int64
	Denied          int64
	LimitedClients  int           // clients with at least one denial
	FirstDenied     *FirstDenial  // nil if nothing was denied
	Top             []Client      // by denials, then by name
	HeaviestDenied  int64         // denials of the five clients that have the most
	LongestStreak   *Streak       // the first of the longest ones; nil if nothing was denied
	DecisionsSHA256 string        // of one letter a request, A or D, in hexadecimal
	OverTime        []int64       // denials
	Limits          []LimitResult // of a File: those that a request has met, by path
	Undescribed     int64         // requests that no descriptor of a File could be made of: allowed
	Refused         int64         // requests with values that an action of a File cannot use: denied
}

// FirstDenial is the first request that a rule denied.
type FirstDenial struct {
	Request int64 // from 1
	Time    int64 // of the clock when it was decided
}

// heaviest is how many clients HeaviestDenied counts.
const heaviest = 5

// A Streak is requests of one client that were denied, with none in between that was allowed.
type Streak struct {
	Client string
	Denied int64
}

// Client is one client of the log.
type Client struct {
	Name     string
	Requests int64
	Denied   []int64 // by rule, in the order of Result.Rules
	// OverTime is the requests that some rule has denied, in equal parts of the log, at most 64; nil without Sparklines.
	OverTime []int64
}
