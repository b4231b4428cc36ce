package dashboard

import (
	"fmt"
	"slices"
	"strings"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/common"
	sdk "github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

// Dashboard is what Grafana reads from files: the schema of version 1, which every Grafana that SGLang's dashboard knows can
// provision.
type Dashboard = sdk.Dashboard //nolint:staticcheck // version 2 of the schema cannot be provisioned from files by the Grafana of most readers

// Build gives the dashboard, ready to be marshalled as JSON: SGLang's eight panels first, at their places, then rows by
// subject. It fails on options that do not fit and on a query that names a family outside of the table.
func Build(o Options) (Dashboard, error) {
	return assemble(o, "What engines do, for whom, and what it costs. docs/diagnosis.md says how to read the panels together.", original, rows)
}

// assemble builds a dashboard of panels above the first row, of which there may be none, and rows.
func assemble(o Options, help string, top func(*queries) []panel, rows func(*queries) []row) (Dashboard, error) {
	if err := o.validate(); err != nil {
		return Dashboard{}, err
	}
	source := common.DataSourceRef{Type: cog.ToPtr("prometheus"), Uid: cog.ToPtr(o.Datasource)}
	if o.Datasource == "" {
		source.Uid = cog.ToPtr("${datasource}")
	}
	q := &queries{options: o}
	d := frame(o.UID, o.Title, o.Tags, help)
	var err error
	if d.Templating.List, err = variables(q, source); err != nil {
		return Dashboard{}, err
	}
	var first []panel
	if top != nil {
		first = top(q)
	}
	if d.Panels, err = layout(first, rows(q), o.Folded, source); err != nil {
		return Dashboard{}, err
	}
	return *d, q.err()
}

// frame is a dashboard without variables and panels.
func frame(uid, title string, tags []string, help string) *Dashboard {
	d := sdk.NewDashboard()
	d.Uid, d.Title, d.Tags = &uid, &title, tags
	d.Description = &help
	d.Refresh, d.Time = cog.ToPtr("5s"), &sdk.DashboardDashboardTime{From: "now-30m", To: "now"}
	d.Editable, d.GraphTooltip = cog.ToPtr(false), cog.ToPtr(sdk.DashboardCursorSyncCrosshair)
	d.SchemaVersion, d.Version = 41, cog.ToPtr(uint32(12))
	return d
}

// firstTop is the id of the first panel above the rows that has none of its own; those of SGLang's dashboard are below it, those
// of rows above.
const firstTop = 30

// layout puts the panels on the grid: two to a line unless they say otherwise, each row below the one before as if all
// were open.
func layout(top []panel, rows []row, folded bool, source common.DataSourceRef) ([]sdk.PanelOrRowPanel, error) {
	var all []sdk.PanelOrRowPanel
	y, err := place(top, source, firstTop, 0, func(p sdk.Panel) { all = append(all, sdk.PanelOrRowPanel{Panel: &p}) })
	if err != nil {
		return nil, err
	}
	for i, r := range rows {
		id := uint32(100 * (i + 1))
		line := sdk.NewRowPanel()
		line.Title, line.Id, line.GridPos = &r.title, id, &sdk.GridPos{H: 1, W: 24, Y: y}
		line.Collapsed = folded && i > 0
		var inside []sdk.Panel
		if y, err = place(r.panels, source, id+1, y+1, func(p sdk.Panel) { inside = append(inside, p) }); err != nil {
			return nil, err
		}
		all = append(all, sdk.PanelOrRowPanel{RowPanel: line})
		if line.Collapsed {
			line.Panels = inside
			continue
		}
		for _, p := range inside {
			all = append(all, sdk.PanelOrRowPanel{Panel: &p})
		}
	}
	return all, nil
}

// place builds panels from a line of the grid on and gives the line after them. first is the id of the first panel.
func place(panels []panel, source common.DataSourceRef, first, y uint32, add func(sdk.Panel)) (next uint32, err error) {
	var x, tallest uint32
	for i, p := range panels {
		width, height := p.size()
		if x+width > 24 {
			x, y, tallest = 0, y+tallest, 0
		}
		id := p.id
		if id == 0 {
			id = first + uint32(i)
		}
		built, err := p.build(source, id, sdk.GridPos{X: x, Y: y, W: width, H: height})
		if err != nil {
			return 0, err
		}
		add(built)
		x, tallest = x+width, max(tallest, height)
	}
	return y + tallest, nil
}

// variables are what a reader chooses: the data source, and values of labels, each offered for the choices before it. All
// values come from one family that every engine has. A choice of "All" also takes series without the label.
func variables(q *queries, source common.DataSourceRef) ([]sdk.VariableModel, error) {
	var list []sdk.VariableModel
	if q.options.Datasource == "" {
		v, err := datasourceVariable()
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	var chosen []string
	for _, m := range q.options.Fixed {
		chosen = append(chosen, fmt.Sprintf("%s=%q", m.Label, m.Value))
	}
	for _, label := range variableLabels(q.options) {
		v, err := labelVariable(label, "{"+strings.Join(append([]string{`__name__=~"sglang[:_]num_running_reqs"`}, chosen...), ", ")+"}", source)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
		chosen = append(chosen, fmt.Sprintf(`%s=~"$%s"`, label, label))
	}
	return list, nil
}

// datasourceVariable lets the reader choose the data source.
func datasourceVariable() (sdk.VariableModel, error) {
	return sdk.NewDatasourceVariableBuilder("datasource").Label("data source").Type("prometheus").
		Current(option("Prometheus", "prometheus")).Build()
}

// labelVariable lets the reader choose among the values that a label has on series of a selector.
func labelVariable(label, selector string, source common.DataSourceRef) (sdk.VariableModel, error) {
	query := fmt.Sprintf("label_values(%s, %s)", selector, label)
	v, err := sdk.NewQueryVariableBuilder(label).Label(strings.ReplaceAll(label, "_", " ")).Datasource(source).
		Query(sdk.StringOrMap{String: &query}).Definition(query).
		Refresh(sdk.VariableRefreshOnTimeRangeChanged).Sort(sdk.VariableSortNaturalAsc).
		Multi(true).IncludeAll(true).AllValue(".*").Current(option("All", "$__all")).Build()
	if err != nil {
		return v, fmt.Errorf("variable %s: %w", label, err)
	}
	return v, nil
}

// variableLabels lists what readers filter by: models first, then where their engines are, then ranks.
func variableLabels(o Options) []string {
	var labels []string
	for _, label := range slices.Concat(modelLabels, o.Filters, rankLabels) {
		if !o.fixed(label) {
			labels = append(labels, label)
		}
	}
	return labels
}

func option(text, value string) sdk.VariableOption {
	return sdk.VariableOption{
		Selected: cog.ToPtr(true),
		Text:     sdk.StringOrArrayOfString{String: &text}, Value: sdk.StringOrArrayOfString{String: &value},
	}
}
