package cli

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice/cmd/internal/message"
	"github.com/sluice-go/sluice/rules"
)

// A Store is how a store of the service keeps rules, for NewCheck.
type Store struct {
	Keys  []string                                 // names of keys that there are
	Check func(set *rules.Set, names string) error // refuses rules that the store does not keep
}

// NewCheck makes the command of a program that checks files of rules. With a store it also names the rules that the store does not keep.
func NewCheck(program string, store *Store) *cobra.Command {
	c := checker{store: store}
	usage, about, example := "check [--merge] PATH...", `"sluiced check --store-keys" also says what a service with --redis would refuse.`, ""
	if store != nil {
		usage, example = "check [--merge] [--store-keys NAMES] PATH...", "\n  "+program+" check --store-keys sluice rules/"
		about = `With --store-keys it also says what "serve --redis" would refuse, since a store
does not keep it. It asks no store.`
	}
	cmd := &cobra.Command{
		Use:   usage,
		Short: "Check files of rules",
		Long: `Check reads files of rules, and directories of them, as one set, and prints all
that is wrong with them: a line each, with the file, the line and the column,
what is wrong and what would be accepted.

Of rules with weights, scale or then it says what a request costs, with an
example, and of others that are not plain how they count.

` + about + `

It exits with 0 if the files are fine, 1 if there are errors or warnings, and 2
if the command line is wrong. Files with warnings load all the same.`,
		Example: "  " + program + " check rules/\n  " + program + " check --merge a.yaml b.yaml" + example,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("no path: want files of rules, or directories")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if c.names != "" {
				if err := WantWord("store-keys", c.names, store.Keys); err != nil {
					return err
				}
			}
			return c.check(cmd.OutOrStdout(), args)
		},
	}
	cmd.Flags().BoolVar(&c.options.MergeDomains, "merge", false, "let several files name the same domain")
	if store != nil {
		cmd.Flags().StringVar(&c.names, "store-keys", "", "check for a store, too, as serve has it: sluice, or\nupstream; empty for counts in memory")
		Complete(cmd, map[string][]string{"store-keys": store.Keys})
	}
	return cmd
}

// checker is the command line of check.
type checker struct {
	options rules.Options
	store   *Store
	names   string // of the store's keys; "" for counts in memory
}

// check loads the files at the paths and reports on them.
func (c *checker) check(out io.Writer, paths []string) error {
	files, other, err := rules.Read(paths)
	if err != nil {
		return Fail(err)
	}
	if len(files) == 0 {
		return Fail(message.NoRules(paths))
	}
	set, problems, err := c.load(files)
	if err != nil {
		return Fail(err)
	}
	for _, name := range other {
		fmt.Fprintf(out, "%s: not read: its name does not end in .yaml or .yml\n", message.OneLine(name))
	}
	if set != nil {
		for _, r := range set.Rules() {
			if text := r.Explain(); text != "" {
				fmt.Fprintln(out, message.OneLine(text))
			}
		}
	}
	faults := 0
	for _, p := range problems {
		fmt.Fprintln(out, message.OneLine(p.String())) // a terminal may obey the bytes of a file
		if !p.Warning {
			faults++
		}
	}
	if len(problems) > 0 {
		return Fail(fmt.Errorf("%s and %s in %s", message.Count(faults, "error"), message.Count(len(problems)-faults, "warning"), message.Count(len(files), "file")))
	}
	if _, err := fmt.Fprintf(out, "%s in %s of %s\n", message.Count(set.Len(), "rule"), message.Count(len(set.Domains()), "domain"), message.Count(len(files), "file")); err != nil {
		return Fail(err)
	}
	return nil
}

// load returns the rules and their problems: first the problems of each file, then the rules that the store does not keep.
func (c *checker) load(files []rules.File) (*rules.Set, []rules.Problem, error) {
	var failed *rules.LoadError
	set, err := rules.Load(files, c.options)
	if errors.As(err, &failed) {
		return nil, failed.Problems, nil
	}
	if err != nil || c.names == "" {
		return set, set.Warnings(), err
	}
	problems := set.Warnings()
	err = c.store.Check(set, c.names)
	if errors.As(err, &failed) {
		return set, append(problems, failed.Problems...), nil
	}
	return set, problems, err
}
