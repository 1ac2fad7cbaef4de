package main

import (
	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice/cmd/internal/cli"
	"github.com/sluice-go/sluice/cmd/internal/compare"
	"github.com/sluice-go/sluice/cmd/internal/recommend"
	"github.com/sluice-go/sluice/cmd/internal/replay"
)

// completeFlags tells shells the values of the flags of commands that read logs.
func completeFlags(root *cobra.Command) {
	var algorithms []string
	for _, a := range replay.Algorithms() {
		algorithms = append(algorithms, a.String())
	}
	outputs := []string{"text", "json"}
	var patterns []string
	for _, p := range compare.Patterns {
		patterns = append(patterns, p.Name+"\t"+p.About)
	}
	targets := outputs
	for _, t := range recommend.Targets {
		targets = append(targets, t.Name+"\tthe rule for "+t.Title)
	}
	for command, flags := range map[string]map[string][]string{
		"replay":    {"algorithm": append([]string{allAlgorithms}, algorithms...), "output": outputs},
		"recommend": {"algorithm": algorithms, "output": targets},
		"compare":   {"algorithm": algorithms, "output": outputs, "pattern": patterns},
	} {
		cmd, _, err := root.Find([]string{command})
		if err != nil {
			panic(err) // there is no such command
		}
		cli.Complete(cmd, flags)
		if cmd.Flags().Lookup("key") != nil {
			_ = cmd.RegisterFlagCompletionFunc("key", completeKey) // fails for a flag only that there is not
		}
	}
}
