package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice/benchmarks/internal/machine"
	"github.com/sluice-go/sluice/benchmarks/internal/remote"
	"github.com/sluice-go/sluice/benchmarks/internal/report"
	"github.com/sluice-go/sluice/benchmarks/internal/results"
)

// The results with Redis that are committed, all of their figures, and the page that shows some.
var (
	redisFile  = filepath.Join(published, "redis.json")
	redisTable = filepath.Join(published, "redis.md")
	redisPage  = filepath.Join("..", "redislimit", "REFERENCE.md")
)

const redisSection = "redis"

// redisResults are the content of redisFile.
type redisResults struct {
	Machine results.Machine
	Redis   string // the version of the server
	Samples []remote.Sample
}

func newRedis() *cobra.Command {
	c := remote.Config{}
	publish := false
	cmd := &cobra.Command{
		Use:   "redis",
		Short: "Measure limiters that keep their state in Redis",
		Long: `Measures redislimit beside other limiters on a private redis-server, and prints a table.
With --publish it replaces results/redis.json, results/redis.md and the section of redislimit's REFERENCE.md.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if c.Rounds < 1 || c.Sample <= 0 {
				return fmt.Errorf("--rounds %d --sample %v: want 1 or more, for some time", c.Rounds, c.Sample)
			}
			c.Log = progress(cmd.ErrOrStderr())
			if err := runRedis(cmd, c, publish); err != nil {
				return failure{err}
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.IntVar(&c.Rounds, "rounds", 7, "samples of every row")
	f.DurationVar(&c.Sample, "sample", time.Second, "how long a sample takes")
	f.BoolVar(&publish, "publish", false, "replace the published results")
	return cmd
}

func runRedis(cmd *cobra.Command, c remote.Config, publish bool) error {
	server, err := remote.Start(cmd.Context())
	if err != nil {
		return err
	}
	defer server.Close()
	samples, err := remote.Run(cmd.Context(), c, server)
	if err != nil {
		return err
	}
	modules := []string{
		"github.com/redis/go-redis/v9", "github.com/go-redis/redis_rate/v10", "github.com/throttled/throttled/v2", "github.com/redis/rueidis",
	}
	r := redisResults{machine.Describe(time.Now(), c.Rounds, modules), server.Version, samples}
	fmt.Fprint(cmd.OutOrStdout(), r.full())
	if !publish {
		return nil
	}
	return errors.Join(results.Save(redisFile, r), r.write())
}

// rewriteRedis makes the pages from the recorded results.
func rewriteRedis() error {
	var r redisResults
	if err := results.Load(redisFile, &r); err != nil {
		return err
	}
	return r.write()
}

// write writes the table and the section of redislimit's REFERENCE.md.
func (r redisResults) write() error {
	return errors.Join(os.WriteFile(redisTable, []byte(r.full()), 0o644), rewrite(redisPage, redisSection, r.section()))
}

// full is redisTable.
func (r redisResults) full() string { return report.Redis(r.Samples) + "\n" + r.origin() }

// section is the section of redislimit's REFERENCE.md.
func (r redisResults) section() string { return report.RedisRatios(r.Samples) + "\n" + r.origin() }

func (r redisResults) origin() string {
	m := r.Machine
	return fmt.Sprintf("%s, %d cores for clients and server, %s/%s, %s, Redis %s, %s, commit %s, medians of %d rounds.\n",
		m.CPU, m.Cores, m.OS, m.Arch, m.Go, r.Redis, m.Date, m.Commit, m.Rounds)
}
