package rank

import (
	"github.com/sluice-dev/sluice/engine/rank/rankpb"
	"github.com/sluice-dev/sluice/engine/request"
)

func requestToWire(r *request.Request) *rankpb.Request {
	p := r.Sampling
	w := &rankpb.Request{
		Rid:       r.RID,
		PromptIds: r.PromptIDs,
		Sampling: &rankpb.Sampling{
			MaxNewTokens: int64(p.MaxNewTokens),
			MinNewTokens: int64(p.MinNewTokens),
			Temperature:  p.Temperature,
			TopP:         p.TopP,
			TopK:         int64(p.TopK),
			Seed:         p.Seed,
			Stop:         p.Stop,
			StopTokenIds: p.StopTokenIDs,
			IgnoreEos:    p.IgnoreEOS,

			MinP:              p.MinP,
			FrequencyPenalty:  p.FrequencyPenalty,
			PresencePenalty:   p.PresencePenalty,
			RepetitionPenalty: p.RepetitionPenalty,
			LogitBias:         each(p.LogitBias, biasToWire),
		},
		LogMetrics:        r.LogMetrics,
		ReceivedWallNanos: r.ReceivedWallNanos,
		CacheKey:          r.CacheKey,
		RoutingKey:        r.RoutingKey,
	}
	if g := r.Grammar; g != nil {
		w.Grammar = &rankpb.Grammar{Kind: string(g.Kind), Source: g.Source}
	}
	if l := r.Logprobs; l != nil {
		w.Logprobs = &rankpb.WantLogprobs{Top: int64(l.Top), TokenIds: l.TokenIDs, PromptFrom: int64(l.PromptFrom)}
	}
	if t := r.Session; t != nil {
		w.Session = &rankpb.Turn{SessionId: t.SessionID, Rid: t.RID, Replace: t.Replace, DropPreviousOutput: t.DropPreviousOutput}
		if t.Offset != nil {
			w.Session.Offset = new(int64(*t.Offset))
		}
	}
	if r.DPRank != nil {
		w.DpRank = new(int64(*r.DPRank))
	}
	if b := r.Bootstrap; b != nil {
		w.Bootstrap = &rankpb.Bootstrap{Host: b.Host, Port: int64(b.Port), Room: b.Room}
	}
	if r.Priority != nil {
		w.Priority = new(int64(*r.Priority))
	}
	if t := r.Trace; t != nil {
		w.Trace = &rankpb.Trace{Parent: t.Parent, State: t.State, Level: int64(t.Level), Module: t.Module, Previous: t.Previous}
	}
	return w
}

func requestFromWire(w *rankpb.Request) *request.Request {
	p := w.GetSampling()
	r := &request.Request{
		RID:       w.GetRid(),
		PromptIDs: w.GetPromptIds(),
		Sampling: request.Sampling{
			MaxNewTokens: int(p.GetMaxNewTokens()),
			MinNewTokens: int(p.GetMinNewTokens()),
			Temperature:  p.GetTemperature(),
			TopP:         p.GetTopP(),
			TopK:         int(p.GetTopK()),
			Stop:         p.GetStop(),
			StopTokenIDs: p.GetStopTokenIds(),
			IgnoreEOS:    p.GetIgnoreEos(),

			MinP:              p.GetMinP(),
			FrequencyPenalty:  p.GetFrequencyPenalty(),
			PresencePenalty:   p.GetPresencePenalty(),
			RepetitionPenalty: p.GetRepetitionPenalty(),
			LogitBias:         each(p.GetLogitBias(), biasFromWire),
		},
		LogMetrics:        w.GetLogMetrics(),
		ReceivedWallNanos: w.GetReceivedWallNanos(),
		CacheKey:          w.GetCacheKey(),
		RoutingKey:        w.GetRoutingKey(),
	}
	if g := w.GetGrammar(); g != nil {
		r.Grammar = &request.Grammar{Kind: request.GrammarKind(g.GetKind()), Source: g.GetSource()}
	}
	if l := w.GetLogprobs(); l != nil {
		r.Logprobs = &request.WantLogprobs{Top: int(l.GetTop()), TokenIDs: l.GetTokenIds(), PromptFrom: int(l.GetPromptFrom())}
	}
	if t := w.GetSession(); t != nil {
		r.Session = &request.Turn{SessionID: t.GetSessionId(), RID: t.GetRid(), Replace: t.GetReplace(), DropPreviousOutput: t.GetDropPreviousOutput()}
		if t.Offset != nil {
			r.Session.Offset = new(int(t.GetOffset()))
		}
	}
	if w.DpRank != nil {
		r.DPRank = new(int(w.GetDpRank()))
	}
	if p != nil && p.Seed != nil {
		r.Sampling.Seed = new(p.GetSeed())
	}
	if b := w.GetBootstrap(); b != nil {
		r.Bootstrap = &request.Bootstrap{Host: b.GetHost(), Port: int(b.GetPort()), Room: b.GetRoom()}
	}
	if w.Priority != nil {
		r.Priority = new(int(w.GetPriority()))
	}
	if t := w.GetTrace(); t != nil {
		r.Trace = &request.Trace{Parent: t.GetParent(), State: t.GetState(), Level: int(t.GetLevel()), Module: t.GetModule(), Previous: t.GetPrevious()}
	}
	return r
}

func biasToWire(b request.TokenBias) *rankpb.TokenBias {
	return &rankpb.TokenBias{Token: b.Token, Bias: b.Bias}
}

func biasFromWire(w *rankpb.TokenBias) request.TokenBias {
	return request.TokenBias{Token: w.GetToken(), Bias: w.GetBias()}
}

func logprobToWire(l request.TokenLogprob) *rankpb.TokenLogprob {
	return &rankpb.TokenLogprob{Token: l.Token, Logprob: l.Logprob}
}

func logprobFromWire(w *rankpb.TokenLogprob) request.TokenLogprob {
	return request.TokenLogprob{Token: w.GetToken(), Logprob: w.GetLogprob()}
}

func positionToWire(l request.TokenLogprobs) *rankpb.TokenLogprobs {
	return &rankpb.TokenLogprobs{Token: l.Token, Logprob: l.Logprob, Top: each(l.Top, logprobToWire), Asked: each(l.Asked, logprobToWire)}
}

func positionFromWire(w *rankpb.TokenLogprobs) request.TokenLogprobs {
	return request.TokenLogprobs{
		TokenLogprob: request.TokenLogprob{Token: w.GetToken(), Logprob: w.GetLogprob()},
		Top:          each(w.GetTop(), logprobFromWire),
		Asked:        each(w.GetAsked(), logprobFromWire),
	}
}

// each converts a list; nil stays nil.
func each[From, To any](list []From, convert func(From) To) []To {
	if len(list) == 0 {
		return nil
	}
	converted := make([]To, len(list))
	for i, v := range list {
		converted[i] = convert(v)
	}
	return converted
}

func sessionToWire(s request.Session) *rankpb.OpenSessionRequest {
	return &rankpb.OpenSessionRequest{Id: s.ID, CapacityTokens: int64(s.CapacityTokens), Streaming: s.Streaming, TimeoutNanos: s.TimeoutNanos}
}

func sessionFromWire(w *rankpb.OpenSessionRequest) request.Session {
	return request.Session{ID: w.GetId(), CapacityTokens: int(w.GetCapacityTokens()), Streaming: w.GetStreaming(), TimeoutNanos: w.GetTimeoutNanos()}
}

func outputToWire(o request.Output) *rankpb.Output {
	w := &rankpb.Output{
		Rid:              o.RID,
		TokenIds:         o.TokenIDs,
		PromptTokens:     int64(o.PromptTokens),
		CachedTokens:     int64(o.CachedTokens),
		CompletionTokens: int64(o.CompletionTokens),
		Retractions:      int64(o.Retractions),
		Logprobs:         each(o.Logprobs, positionToWire),
		PromptLogprobs:   each(o.PromptLogprobs, positionToWire),
	}
	if f := o.Finish; f != nil {
		w.Finish = &rankpb.Finish{
			Type:                  string(f.Type),
			Outcome:               string(f.Outcome),
			MatchedToken:          f.MatchedToken,
			MatchedStop:           f.MatchedStop,
			Message:               f.Message,
			QueueNanos:            f.QueueNanos,
			ForwardEntryWallNanos: f.ForwardEntryWallNanos,
			PrefillEndWallNanos:   f.PrefillEndWallNanos,
			ComputedTokens:        int64(f.ComputedTokens),
			ReprocessedTokens:     int64(f.ReprocessedTokens),
			Timeline:              timelineToWire(f.Timeline),
		}
	}
	return w
}

func outputFromWire(w *rankpb.Output) request.Output {
	o := request.Output{
		RID:              w.GetRid(),
		TokenIDs:         w.GetTokenIds(),
		PromptTokens:     int(w.GetPromptTokens()),
		CachedTokens:     int(w.GetCachedTokens()),
		CompletionTokens: int(w.GetCompletionTokens()),
		Retractions:      int(w.GetRetractions()),
		Logprobs:         each(w.GetLogprobs(), positionFromWire),
		PromptLogprobs:   each(w.GetPromptLogprobs(), positionFromWire),
	}
	if f := w.GetFinish(); f != nil {
		o.Finish = &request.Finish{
			Type:                  request.FinishType(f.GetType()),
			Outcome:               request.Outcome(f.GetOutcome()),
			MatchedToken:          f.MatchedToken,
			MatchedStop:           f.GetMatchedStop(),
			Message:               f.GetMessage(),
			QueueNanos:            f.GetQueueNanos(),
			ForwardEntryWallNanos: f.GetForwardEntryWallNanos(),
			PrefillEndWallNanos:   f.GetPrefillEndWallNanos(),
			ComputedTokens:        int(f.GetComputedTokens()),
			ReprocessedTokens:     int(f.GetReprocessedTokens()),
			Timeline:              timelineFromWire(f.GetTimeline()),
		}
	}
	return o
}

func infoToWire(i Info) *rankpb.InfoReply {
	ranks := make([]*rankpb.RankProcess, len(i.Ranks))
	for at, p := range i.Ranks {
		ranks[at] = &rankpb.RankProcess{
			DpRank: int64(p.DPRank), Rank: int64(p.Rank), TpRank: int64(p.TPRank), PpRank: int64(p.PPRank), NodeRank: int64(p.NodeRank), Pid: int64(p.PID),
		}
	}
	return &rankpb.InfoReply{
		Ranks:                      ranks,
		Rank:                       int64(i.Rank),
		Pid:                        int64(i.PID),
		ModelId:                    i.ModelID,
		Dtype:                      i.DType,
		VocabSize:                  int64(i.VocabSize),
		NumLayers:                  int64(i.NumLayers),
		EosTokenIds:                i.EOSTokenIDs,
		ContextLength:              int64(i.ContextLength),
		PageSize:                   int64(i.PageSize),
		MaxTotalNumTokens:          int64(i.MaxTotalNumTokens),
		MaxRunningRequests:         int64(i.MaxRunningRequests),
		MaxRunningRequestsUnderSlo: int64(i.MaxRunningRequestsUnderSLO),
		WeightBytes:                i.WeightBytes,
		KvBytes:                    i.KVBytes,
		Startup: &rankpb.Startup{
			LoadWeightNanos: i.Startup.LoadWeightNanos, KvCacheNanos: i.Startup.KVCacheNanos, TotalNanos: i.Startup.TotalNanos,
		},
	}
}

func infoFromWire(w *rankpb.InfoReply) Info {
	var ranks []RankProcess
	for _, p := range w.GetRanks() {
		ranks = append(ranks, RankProcess{
			DPRank: int(p.GetDpRank()), Rank: int(p.GetRank()), TPRank: int(p.GetTpRank()), PPRank: int(p.GetPpRank()),
			NodeRank: int(p.GetNodeRank()), PID: int(p.GetPid()),
		})
	}
	return Info{
		Ranks:                      ranks,
		Rank:                       int(w.GetRank()),
		PID:                        int(w.GetPid()),
		ModelID:                    w.GetModelId(),
		DType:                      w.GetDtype(),
		VocabSize:                  int(w.GetVocabSize()),
		NumLayers:                  int(w.GetNumLayers()),
		EOSTokenIDs:                w.GetEosTokenIds(),
		ContextLength:              int(w.GetContextLength()),
		PageSize:                   int(w.GetPageSize()),
		MaxTotalNumTokens:          int(w.GetMaxTotalNumTokens()),
		MaxRunningRequests:         int(w.GetMaxRunningRequests()),
		MaxRunningRequestsUnderSLO: int(w.GetMaxRunningRequestsUnderSlo()),
		Startup: Startup{
			LoadWeightNanos: w.GetStartup().GetLoadWeightNanos(), KVCacheNanos: w.GetStartup().GetKvCacheNanos(), TotalNanos: w.GetStartup().GetTotalNanos(),
		},
		WeightBytes: w.GetWeightBytes(),
		KVBytes:     w.GetKvBytes(),
	}
}
