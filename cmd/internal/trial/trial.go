// Package trial has a running service judge its calls by other rules beside the rules in force, which go on to answer them, and says
// who would change sides. The service makes the Result; a program asks for one by Ask.
package trial

// A Result is the calls of a trial. Calls that change sides are counted by the rule that denies them, and by client.
type Result struct {
	Seconds   float64 `json:"seconds"`
	Calls     uint64  `json:"calls"`
	Denied    uint64  `json:"denied"`     // by the rules in force
	WouldDeny uint64  `json:"would_deny"` // by the rules on trial
	KeptOut   uint64  `json:"kept_out"`   // passed, and would be denied
	LetIn     uint64  `json:"let_in"`     // denied, and would pass
	Failed    uint64  `json:"failed"`     // that the rules on trial could not judge

	// Fresh reports that all counts on trial began at 0. Otherwise they went on from the counts of the service, but in the domains
	// of Anew.
	Fresh bool     `json:"fresh"`
	Anew  []string `json:"anew"`

	// Rules has the rules with the most calls that change sides, by their paths. Clients has the clients, by rule and entries, or by
	// rule and a hash if the service names nobody. Of many clients only the heaviest are counted, and their numbers can be too large.
	Rules   []Side `json:"rules"`
	Clients []Side `json:"clients"`
	// MoreRules and MoreClients are how many others were counted.
	MoreRules   int `json:"more_rules"`
	MoreClients int `json:"more_clients"`
}

// A Side is the calls of one rule, or client, that change sides.
type Side struct {
	Name    string `json:"name"`
	KeptOut uint64 `json:"kept_out"`
	LetIn   uint64 `json:"let_in"`
}
