package dashboard

import (
	"fmt"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/common"
	sdk "github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/heatmap"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/text"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
)

// Units as Grafana spells them.
const (
	seconds      = "s"
	milliseconds = "ms"
	tokensPerSec = "suffix: tok/s"
	tokens       = "suffix: tok"
	requests     = "suffix: req"
	reqPerSec    = "reqps"
	perSec       = "ops"
	ratio        = "percentunit"
	percent      = "percent"
	number       = "short"
	gibPerSec    = "suffix: GiB/s"
	mebibytes    = "mbytes"
	gibibytes    = "gbytes"
)

// look is how a panel shows its answers.
type look uint8

const (
	lines   look = iota // a line a series
	stacked             // lines on top of each other, for parts of a whole
	heat                // a histogram over time
	value               // the last value, large
	perRank             // a line of a map a series, its colour the value
	prose               // words, and no query
)

// panel is one panel.
type panel struct {
	title string
	help  string // shown behind the title's sign
	look  look
	unit  string
	// empty is shown when Prometheus has no answer: why that may be in order.
	empty string
	// warn and bad begin the yellow and the red area; 0 for none.
	warn, bad float64
	// top bounds the axis; 0 for none.
	top float64
	// below lets the axis go below 0.
	below   bool
	width   uint32 // of 24; 0 for 12
	height  uint32 // 0 for 8
	targets []target
	text    string // with prose: Markdown
	id      uint32 // 0: by position
}

// target is one query of a panel.
type target struct{ expr, legend string }

// row is a group of panels under a title.
type row struct {
	title  string
	panels []panel
}

const noTraffic = "no request in this window"

func (p panel) build(source common.DataSourceRef, id uint32, pos sdk.GridPos) (sdk.Panel, error) {
	var built sdk.Panel
	var err error
	switch p.look {
	case heat:
		built, err = p.heatmap(source, prometheus.PromQueryFormatHeatmap).Build()
	case perRank:
		built, err = p.heatmap(source, prometheus.PromQueryFormatTimeSeries).Build()
	case prose:
		built, err = text.NewPanelBuilder().Title(p.title).Mode(text.TextModeMarkdown).Content(p.text).Build()
	case value:
		built, err = p.stat(source).Build()
	default:
		built, err = p.timeseries(source).Build()
	}
	if err != nil {
		return sdk.Panel{}, fmt.Errorf("panel %s: %w", p.title, err)
	}
	built.Id, built.GridPos = &id, &pos
	return built, nil
}

func (p panel) size() (width, height uint32) {
	width, height = p.width, p.height
	if width == 0 {
		width = 12
	}
	if height == 0 {
		height = 8
	}
	return width, height
}

func (p panel) timeseries(source common.DataSourceRef) *timeseries.PanelBuilder {
	b := timeseries.NewPanelBuilder().Title(p.title).Description(p.help).Datasource(source).Unit(p.unit).NoValue(p.noValue()).
		LineWidth(1).FillOpacity(8).ShowPoints(common.VisibilityModeNever).
		Legend(common.NewVizLegendOptionsBuilder().DisplayMode(common.LegendDisplayModeTable).Placement(common.LegendPlacementBottom).
			ShowLegend(true).Calcs([]string{"mean", "max", "lastNotNull"})).
		Tooltip(common.NewVizTooltipOptionsBuilder().Mode(common.TooltipDisplayModeMulti).Sort(common.SortOrderDescending)).
		Thresholds(p.thresholds())
	if p.warn != 0 || p.bad != 0 {
		b.ThresholdsStyle(common.NewGraphThresholdsStyleConfigBuilder().Mode(common.GraphThresholdsStyleModeDashed))
	}
	if !p.below {
		b.Min(0)
	}
	if p.top != 0 {
		b.Max(p.top)
	}
	if p.look == stacked {
		b.Stacking(common.NewStackingConfigBuilder().Mode(common.StackingModeNormal)).FillOpacity(25)
	}
	for i, t := range p.targets {
		b.WithTarget(t.query(source, i, prometheus.PromQueryFormatTimeSeries))
	}
	return b
}

// heatmap gives buckets as lines where the format is that of histograms, else series.
func (p panel) heatmap(source common.DataSourceRef, format prometheus.PromQueryFormat) *heatmap.PanelBuilder {
	b := heatmap.NewPanelBuilder().Title(p.title).Description(p.help).Datasource(source).NoValue(p.noValue()).
		Tooltip(heatmap.NewHeatmapTooltipBuilder().Mode(common.TooltipDisplayModeSingle)).
		Color(heatmap.NewHeatmapColorOptionsBuilder().Mode(heatmap.HeatmapColorModeScheme).Scheme("Spectral").Exponent(0.5).Steps(64).Fill("dark-orange"))
	if format == prometheus.PromQueryFormatHeatmap {
		b.YAxis(heatmap.NewYAxisConfigBuilder().Unit(p.unit)) // of the bounds
	} else {
		b.CellValues(heatmap.NewCellValuesBuilder().Unit(p.unit)).Calculate(false)
	}
	for i, t := range p.targets {
		b.WithTarget(t.query(source, i, format))
	}
	return b
}

func (p panel) stat(source common.DataSourceRef) *stat.PanelBuilder {
	b := stat.NewPanelBuilder().Title(p.title).Description(p.help).Datasource(source).Unit(p.unit).NoValue(p.noValue()).
		GraphMode(common.BigValueGraphModeNone).ColorMode(common.BigValueColorModeValue).
		ReduceOptions(common.NewReduceDataOptionsBuilder().Calcs([]string{"lastNotNull"})).
		Thresholds(p.thresholds())
	for i, t := range p.targets {
		b.WithTarget(t.query(source, i, prometheus.PromQueryFormatTimeSeries))
	}
	return b
}

func (p panel) thresholds() cog.Builder[sdk.ThresholdsConfig] {
	steps := []sdk.Threshold{{Color: "green"}}
	if p.warn != 0 {
		steps = append(steps, sdk.Threshold{Value: &p.warn, Color: "yellow"})
	}
	if p.bad != 0 {
		steps = append(steps, sdk.Threshold{Value: &p.bad, Color: "red"})
	}
	return sdk.NewThresholdsConfigBuilder().Mode(sdk.ThresholdsModeAbsolute).Steps(steps)
}

func (p panel) noValue() string {
	if p.empty == "" {
		return "no data: is the engine started with --enable-metrics and scraped?"
	}
	return p.empty
}

func (t target) query(source common.DataSourceRef, i int, format prometheus.PromQueryFormat) *prometheus.DataqueryBuilder {
	return prometheus.NewDataqueryBuilder().Datasource(source).Expr(t.expr).LegendFormat(t.legend).Format(format).
		EditorMode(prometheus.QueryEditorModeCode).Range().RefId(string(rune('A' + i)))
}
