package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice/cmd/internal/accesslog"
	"github.com/sluice-go/sluice/cmd/internal/replay"
)

// defaultKey is the key of requests that are counted by client.
const defaultKey = "client"

// keyHelp lists the parts that requests can be counted by.
const keyHelp = `
--key counts by something else: client, path-class, path, method, host, user,
agent, status, status-class, or field:NAME, the format's own name for a field,
such as $NAME of a pattern. Several with commas between count together. The
report then has such keys for clients, and leaves out requests that lack a part.
A path is without its query, and in one spelling. In its class {id} stands for
digits between slashes, for a UUID, and for eight hexadecimal digits or more,
one of them from 0 to 9, also before an extension: /users/{id}/me.`

// keyFlag is the flag of commands that count by other keys than clients.
type keyFlag struct{ text string }

func (k *keyFlag) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&k.text, "key", defaultKey, "`KEY` to count requests by")
}

// newKey returns the parts of the log to read for a client, nil for the client itself.
func (k *keyFlag) newKey(ipv6Prefix int) (*accesslog.Key, *replay.Clients, error) {
	naming, err := replay.Naming(ipv6Prefix)
	if err != nil {
		return nil, nil, err
	}
	key, err := accesslog.ParseKey(k.text, naming)
	if err != nil {
		return nil, nil, err
	}
	if key != nil {
		return key, replay.NewKeys(), nil
	}
	clients, err := replay.NewClients(ipv6Prefix)
	return nil, clients, err
}

// reported is the key for a report, which has none for clients.
func (k *keyFlag) reported() string {
	if k.text == defaultKey {
		return ""
	}
	return k.text
}

// parts returns the parts of a key other than the client; nil for that.
func (k *keyFlag) parts() []string {
	if k.text == defaultKey {
		return nil
	}
	return strings.Split(k.text, ",")
}

// completeKey completes the last part of a key.
func completeKey(_ *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
	before := typed[:strings.LastIndexByte(typed, ',')+1]
	var out []string
	for _, part := range append(accesslog.KeyParts(), "field:") {
		if !strings.Contains(","+before, ","+part+",") {
			out = append(out, before+part)
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
}
