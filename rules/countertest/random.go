package countertest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
)

// commonSets are the rules of the cases, the same without g, and with another g. Units are so long that nothing comes back while a
// test runs.
var commonSets = func() [][]rule {
	const text = `
rule w year 100
rule f year 100 fixed-window
rule n year 100 admitted
rule c year 100 debt=5
rule l year 10 sliding-log
rule s year 10 sliding-window
rule k year 10 leaky-bucket
rule i year 5 in-flight
rule z year 0
rule y year 0 leaky-bucket
rule q=x* year 100 share
rule sw year 10 shadow
rule sg year 10 gcra shadow
rule sz year 0 shadow
rule sb year 0 gcra shadow
rule free year 0 unlimited
rule t year 100 weights=input*1+output*5
rule p year 10 then=more
rule m=pool year 5 name=more
`
	return mustRules(text + "rule g year 10 token-bucket\nset\n" + text + "set\n" + text + "rule g year 10 gcra\n")
}()

// kind is a kind of random histories.
type kind struct {
	name    string
	history func(*rand.Rand, Counts) *script
}

var kinds = []kind{
	{"each by itself", func(r *rand.Rand, c Counts) *script { return takes(r, c, "", false) }},
	{"all or none", func(r *rand.Rand, c Counts) *script { return takes(r, c, "a/", false) }},
	{"only what is over", func(r *rand.Rand, c Counts) *script { return takes(r, c, "", true) }},
	{"holds", func(r *rand.Rand, _ Counts) *script { return holds(r, "") }},
	{"holds, all or none", func(r *rand.Rand, _ Counts) *script { return holds(r, "a/") }},
}

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// randomRules makes rules of three keys, each for every value, for one, and for a pattern.
func randomRules(r *rand.Rand, units []string) (out []rule) {
	text := ""
	for _, key := range []string{"a", "b", "c"} {
		for _, value := range []string{"", "=x", "=y*"} {
			algorithm := pick(r, append(algorithms, "", "", "admitted")...)
			text += fmt.Sprintf("rule %s%s %s %d %s", key, value, pick(r, units...), r.IntN(40), algorithm)
			if fixed := algorithm == "" || algorithm == "admitted" || algorithm == "fixed-window"; fixed && units[0] == "month" && r.IntN(2) == 0 {
				text += " calendar"
			}
			if value == "=y*" && r.IntN(2) == 0 {
				text += " share"
			}
			if r.IntN(5) == 0 {
				text += " shadow"
			}
			if r.IntN(6) == 0 {
				text += " quota"
			}
			text += "\n"
		}
	}
	budgets := []string{"", "", "gcra", "token-bucket", "leaky-bucket", "sliding-window", "sliding-log"}
	text += fmt.Sprintf("rule p %s %d %s then=more\n", pick(r, units...), r.IntN(40), pick(r, budgets...))
	text += fmt.Sprintf("rule m=pool %s %d %s name=more\n", pick(r, units...), r.IntN(80), pick(r, budgets...))
	return mustRules(text)[0]
}

// takes is a history of calls of Engine.Decide.
func takes(r *rand.Rand, c Counts, domain string, stop bool) *script {
	units := []string{"month", "year"}
	moves := c.Exact && r.IntN(2) == 0
	if moves {
		units = []string{"second", "minute", "hour"}
	}
	s := &script{stop: stop, shadow: r.IntN(8) == 0, sets: [][]rule{randomRules(r, units)}}
	for range 80 {
		if moves && r.IntN(3) == 0 {
			s.add("pass %dus", r.IntN(400_000))
		}
		s.add("@%d take %s%s", r.IntN(3), domain, takeList(r, units))
	}
	for _, rule := range s.sets[0] {
		s.add("series %s%s", domain, rule.path())
	}
	s.add("series %soverride", domain)
	return s
}

// add adds a call.
func (s *script) add(format string, of ...any) {
	c, err := parseCall(fmt.Sprintf(format, of...))
	if err != nil {
		panic(err)
	}
	s.calls = append(s.calls, c)
}

// takeList are the descriptors of a call. No key is charged and given hits back in one call, and no budget is the second of one
// descriptor and the only one of another: MEANING.md does not say which goes first.
func takeList(r *rand.Rand, units []string) string {
	keys := []string{"a", "b", "c", pick(r, "p", "p", "m")}
	r.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	var out []string
	for _, key := range keys[:1+r.IntN(3)] {
		value, override, hits := pick(r, "x", "y1", "y2", "z"), "", ""
		if key == "m" {
			value = "pool"
		}
		if r.IntN(6) == 0 && strings.Contains("abc", key) {
			override = fmt.Sprintf("@%d/%s", 1+r.IntN(20), pick(r, units...))
		}
		if r.IntN(5) == 0 {
			hits = "-"
		}
		hits += fmt.Sprint(pick(r, 0, 1, 1, 1, 2, 3, 4, 5, 12))
		out = append(out, fmt.Sprintf("%s=%s%s:%s", key, value, override, hits))
		if r.IntN(6) == 0 && hits[0] != '-' {
			out = append(out, fmt.Sprintf("%s=%s%s:%d", key, value, override, r.IntN(6)))
		}
	}
	return strings.Join(out, ",")
}

// holds is a history of calls about holds, beside other calls.
func holds(r *rand.Rand, domain string) *script {
	s := &script{sets: commonSets, shadow: r.IntN(5) == 0}
	b := holdLines{r: r, domain: domain, named: map[string][]string{}}
	for range 80 {
		b.next(s)
	}
	s.add("reload 0") // which has the statistics of all rules
	for _, rule := range s.sets[0] {
		s.add("series %s%s", domain, rule.path())
	}
	return s
}

// holdLines makes random calls about holds.
type holdLines struct {
	r      *rand.Rand
	domain string
	named  map[string][]string // the descriptors that an id was first used with
	last   string
	lives  [12]int // of each id; it has another name in each
}

// descriptors are some of different keys, without hits.
func (b *holdLines) descriptors(limited bool) (out []string) {
	keys := []string{"w", "f", "n", "c", "k", "s", "i", "q", "sw", "sg", "g"}
	if !limited {
		keys = append(keys, "free", "none")
	}
	b.r.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	for _, key := range keys[:1+b.r.IntN(3)] {
		value := string("uv"[b.r.IntN(8)/7])
		if key == "q" {
			value = "x" + value
		}
		if len(key) == 1 && b.r.IntN(12) == 0 {
			value += "@50/year"
		}
		out = append(out, key+"="+value)
		if b.r.IntN(10) == 0 && strings.Contains("wfnksiqg", key) {
			out = append(out, key+"="+value) // twice; MEANING.md leaves shadow mode and debts out
		}
	}
	return out
}

func (b *holdLines) list(of []string, most int) string {
	hits := []int{0, 1, 2, 3, 8, 40, 120, 1_000_000}
	if len(slices.Compact(slices.Clone(of))) < len(of) {
		most = min(most, 5)
	}
	for i, d := range of {
		of[i] = fmt.Sprint(d, ":", hits[b.r.IntN(most)])
	}
	return b.domain + strings.Join(of, ",")
}

func (b *holdLines) next(s *script) {
	r := b.r
	process := fmt.Sprintf("@%d ", r.IntN(3))
	if b.last != "" && r.IntN(6) == 0 {
		s.add("%s", process+b.last) // the same again
		return
	}
	op := pick(r, "hold", "hold", "hold", "hold", "hold", "hold", "extend", "extend", "settle", "settle", "settle", "settle", "release", "release", "take", "take", "lapse", "reset", "reload")
	at := r.IntN(len(b.lives))
	id := fmt.Sprint(at, ".", b.lives[at])
	if b.named[id] == nil {
		b.named[id] = b.descriptors(false)
	}
	of := slices.Clone(b.named[id])
	if r.IntN(8) == 0 {
		of = b.descriptors(false)
	}
	switch op {
	case "take":
		b.last = "take " + b.list(b.descriptors(false), 5)
	case "hold":
		b.last = fmt.Sprint("hold ", id, " ", b.list(of, 8), pick(r, "", "", " back"))
	case "extend":
		b.last = fmt.Sprint("extend ", id, " ", b.list(of, 6), pick(r, "", " step=1", " step=2"))
	case "settle", "release":
		b.last = fmt.Sprint(op, " ", id, " ", b.list(of, 8))
	case "lapse": // with a name of its own
		b.lives[at]++
		s.add("%shold l%s %s ttl=1ms%s", process, id, b.list(of, 5), pick(r, "", " back"))
		s.add("pass 3ms")
		b.last = ""
		return
	case "reset": // of a hold whose key was reset, which MEANING.md leaves out
		for i := range b.lives {
			b.lives[i]++
		}
		b.last = ""
		s.add("reset %s", b.list(b.descriptors(true), 1))
		return
	case "reload":
		s.add("reload %d", r.IntN(2))
		return
	}
	s.add("%s", process+b.last)
}
