package rls

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/rules"
)

// answer translates a response.
func (s *Service) answer(req *pb.RateLimitRequest, resp *rules.Response) *pb.RateLimitResponse {
	n := len(resp.Statuses)
	statuses := make([]answered, n)
	out := &pb.RateLimitResponse{
		OverallCode: pb.RateLimitResponse_Code(resp.Code),
		Statuses:    make([]*pb.RateLimitResponse_DescriptorStatus, n),
	}
	for i := range resp.Statuses {
		statuses[i].translate(&resp.Statuses[i])
		out.Statuses[i] = &statuses[i].status
	}
	if s.options.Headers && resp.Tightest >= 0 {
		out.ResponseHeadersToAdd = s.headers(&resp.Statuses[resp.Tightest])
	}
	if wait := retryHeader(resp); wait > 0 {
		out.ResponseHeadersToAdd = append(out.ResponseHeadersToAdd, &core.HeaderValue{Key: retryAfterHeader, Value: strconv.FormatUint(wait, 10)})
	}
	rule := resp.DeniedBy()
	if h := s.ruleHeader(resp, rule); h != "" {
		out.ResponseHeadersToAdd = append(out.ResponseHeadersToAdd, &core.HeaderValue{Key: s.options.RuleHeader, Value: h})
	}
	switch {
	case s.options.DynamicMetadata:
		out.DynamicMetadata = metadata(req, resp)
	case rule != "" && !resp.WouldDeny:
		out.DynamicMetadata = &structpb.Struct{Fields: map[string]*structpb.Value{}}
	default:
		return out
	}
	if own := denial(resp, rule); own != nil {
		out.DynamicMetadata.Fields[ownKey] = structpb.NewStructValue(&structpb.Struct{Fields: own})
	}
	return out
}

// The keys of dynamic metadata that are ours: those below ownKey. wire.go writes ruleKey, too.
const (
	ownKey  = "sluice"
	ruleKey = "rule"
)

// denial says which rule denied a call, or would have.
func denial(resp *rules.Response, rule string) map[string]*structpb.Value {
	if rule == "" {
		return nil
	}
	own := map[string]*structpb.Value{ruleKey: structpb.NewStringValue(rule)}
	if resp.WouldDeny {
		own["would_deny"] = structpb.NewBoolValue(true)
	}
	return own
}

const retryAfterHeader = "Retry-After"

// retryHeader is the value of Retry-After of a call that is denied, by rules that say how to tell it; 0 for none.
func retryHeader(resp *rules.Response) uint64 {
	wait, asked := resp.RetryAfter()
	if !asked || wait == sluice.Never {
		return 0
	}
	return uint64(max(1, seconds(wait)))
}

// ruleHeader is the value of the header with the rule that denied a call, or "" for none.
func (s *Service) ruleHeader(resp *rules.Response, rule string) string {
	if s.options.RuleHeader == "" || resp.Code != rules.OverLimit {
		return ""
	}
	return HeaderOf(rule)
}

// maxHeader bounds the value of a header, in bytes.
const maxHeader = 1024

// HeaderOf returns a rule's path as the value of a header: bytes other than visible ASCII, and %, are written
// as %XX, and 1024 bytes are the most.
func HeaderOf(path string) string {
	if len(path) <= maxHeader && !strings.ContainsFunc(path, escaped) {
		return path
	}
	var b strings.Builder
	for i := 0; i < len(path) && b.Len() <= maxHeader-3; i++ {
		if c := path[i]; escaped(rune(c)) {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

func escaped(c rune) bool { return c <= ' ' || c > '~' || c == '%' }

// answered is the messages of one status, in one place: an answer is then a few allocations.
type answered struct {
	status pb.RateLimitResponse_DescriptorStatus
	limit  pb.RateLimitResponse_RateLimit
	reset  durationpb.Duration
}

func (a *answered) translate(st *rules.Status) {
	out := &a.status
	out.Code = pb.RateLimitResponse_Code(st.Code)
	out.LimitRemaining = st.Remaining
	if !st.Limited {
		return
	}
	out.CurrentLimit = &a.limit
	a.limit.RequestsPerUnit, a.limit.Unit = st.Requests, pb.RateLimitResponse_RateLimit_Unit(st.Unit)
	if st.Rule != nil {
		a.limit.Name = st.Rule.Name()
	}
	out.DurationUntilReset = &a.reset
	a.reset.Seconds = int64(st.ResetAfter / time.Second)
}

func (s *Service) headers(st *rules.Status) []*core.HeaderValue {
	o := &s.options
	return []*core.HeaderValue{
		{Key: o.LimitHeader, Value: strconv.FormatUint(uint64(st.Requests), 10)},
		{Key: o.RemainingHeader, Value: strconv.FormatUint(uint64(st.Remaining), 10)},
		{Key: o.ResetHeader, Value: strconv.FormatInt(int64(st.ResetAfter/time.Second), 10)},
	}
}

// metadata has the request, and the metadata of the rules that passed.
func metadata(req *pb.RateLimitRequest, resp *rules.Response) *structpb.Struct {
	descriptors := make([]*structpb.Value, len(req.Descriptors))
	merged := map[string]any{}
	for i, d := range req.Descriptors {
		entries := make([]*structpb.Value, len(d.GetEntries()))
		for j, e := range d.GetEntries() {
			entries[j] = structpb.NewStringValue(e.GetKey() + "=" + e.GetValue())
		}
		fields := map[string]*structpb.Value{"entries": list(entries)}
		if h := d.GetHitsAddend(); h != nil {
			fields["hitsAddend"] = structpb.NewNumberValue(float64(h.Value))
		}
		if l := d.GetLimit(); l != nil {
			fields["limit"] = structpb.NewStringValue(limitText(l))
		}
		descriptors[i] = structpb.NewStructValue(&structpb.Struct{Fields: fields})
		if st := &resp.Statuses[i]; st.Code == rules.OK && st.Rule != nil && !st.Rule.Unlimited() {
			merge(merged, st.Rule.Metadata())
		}
	}
	out := map[string]*structpb.Value{"domain": structpb.NewStringValue(req.Domain), "descriptors": list(descriptors)}
	if req.HitsAddend != 0 {
		out["hitsAddend"] = structpb.NewNumberValue(float64(req.HitsAddend))
	}
	if len(merged) != 0 {
		if s, err := structpb.NewStruct(merged); err == nil { // what YAML says, JSON can say
			out["metadata"] = structpb.NewStructValue(s)
		}
	}
	return &structpb.Struct{Fields: out}
}

// limitText writes a limit in protobuf's text format, which leaves out a field that is 0.
func limitText(l *ratelimit.RateLimitDescriptor_RateLimitOverride) string {
	unit := "unit:" + l.Unit.String()
	if l.RequestsPerUnit == 0 {
		return unit
	}
	return fmt.Sprintf("requests_per_unit:%d %s", l.RequestsPerUnit, unit)
}

func list(values []*structpb.Value) *structpb.Value {
	return structpb.NewListValue(&structpb.ListValue{Values: values})
}

// merge adds from to into: the first value of a key stays, and maps are merged. No map of from
// becomes part of into, so that nothing is ever written to a rule's.
func merge(into, from map[string]any) {
	for k, v := range from {
		m, isMap := v.(map[string]any)
		old, exists := into[k]
		switch oldMap, oldIsMap := old.(map[string]any); {
		case exists && oldIsMap && isMap:
			merge(oldMap, m)
		case exists:
		case isMap:
			fresh := map[string]any{}
			merge(fresh, m)
			into[k] = fresh
		default:
			into[k] = v
		}
	}
}
