package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluice-go/sluice/cmd/internal/message"
)

// groupOf is the annotation of a flag that has the title of its group.
const groupOf = "sluice_group"

func init() { cobra.AddTemplateFunc("flagHelp", flagHelp) }

// Group defines flags that help lists together, under a title and in the order of their definitions. Flags of no group are listed last.
func Group(f *pflag.FlagSet, title string, define func(f *pflag.FlagSet)) {
	group := pflag.NewFlagSet(title, pflag.ContinueOnError)
	f.SortFlags, group.SortFlags = false, false
	define(group)
	group.VisitAll(func(flag *pflag.Flag) {
		_ = group.SetAnnotation(flag.Name, groupOf, []string{title}) // fails for flags only that there are not
	})
	f.AddFlagSet(group)
}

// flagGroup is the help of flags under one title.
type flagGroup struct{ title, help string }

// groupsOf returns the help of the flags in so many columns: without groups it is one, Flags.
func groupsOf(f *pflag.FlagSet, columns int) (out []flagGroup) {
	var titles []string
	sets := map[string]*pflag.FlagSet{}
	f.VisitAll(func(flag *pflag.Flag) {
		title := strings.Join(flag.Annotations[groupOf], "")
		if sets[title] == nil {
			sets[title] = pflag.NewFlagSet(title, pflag.ContinueOnError)
			sets[title].SortFlags = f.SortFlags
			titles = append(titles, title)
		}
		sets[title].AddFlag(flag)
	})
	last := "Flags"
	for _, title := range titles {
		if title != "" {
			out = append(out, flagGroup{title, sets[title].FlagUsagesWrapped(columns)})
			last = "Other flags"
		}
	}
	if sets[""] != nil {
		out = append(out, flagGroup{last, sets[""].FlagUsagesWrapped(columns)})
	}
	return out
}

// flagHelp is the part of a command's help that lists its flags.
func flagHelp(f *pflag.FlagSet) string {
	var b strings.Builder
	for _, g := range groupsOf(f, 80) {
		b.WriteString(g.title + ":\n" + g.help + "\n")
	}
	return strings.TrimRight(b.String(), "\n")
}

// WantWord refuses values of a flag other than its words.
func WantWord(flag, value string, words []string) error {
	if !slices.Contains(words, value) {
		return fmt.Errorf("--%s %q: want %s", flag, value, message.Or(words))
	}
	return nil
}

// Complete tells shells which values flags take, by the names of the flags. Behind a tab a value can have a description.
func Complete(cmd *cobra.Command, flags map[string][]string) {
	for flag, values := range flags {
		complete := cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)
		if err := cmd.RegisterFlagCompletionFunc(flag, complete); err != nil {
			panic(err) // there is no such flag
		}
	}
}
