"""Reads and writes the reports of benchmarks. Their format is described in report.h."""
import json
import math


class Damaged(Exception):
    """A file that is not a report."""


def name(result):
    """The unique name of a result in its report: hit keys=64 params=0"""
    return ' '.join([result['benchmark']] + [f'{axis}={value}' for axis, value in result['axes'].items()])


def is_figure(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value > 0


def read(file):
    """The report, complete and without duplicate results. Raises Damaged."""
    try:
        with open(file, encoding='utf-8') as lines:
            report = json.load(lines)
    except (OSError, ValueError) as error:
        raise Damaged(f'{file}: {error}') from error
    if not isinstance(report, dict) or not isinstance(report.get('machine'), str) or \
            not isinstance(report.get('results'), list):
        raise Damaged(f'{file}: no report')
    names = set()
    for i, result in enumerate(report['results']):
        if not isinstance(result, dict) or not isinstance(result.get('benchmark'), str) or \
                not isinstance(result.get('axes'), dict) or not isinstance(result.get('unit'), str) or \
                not is_figure(result.get('value')):
            raise Damaged(f'{file}: result {i} lacks its benchmark, axes, unit or value')
        if 'reference' in result and not is_figure(result.get('reference_value')) or \
                'ratio' in result and ('reference' not in result or not is_figure(result['ratio'])):
            raise Damaged(f'{file}: {name(result)}: its reference or ratio is no figure')
        if name(result) in names:
            raise Damaged(f'{file}: {name(result)} is there twice')
        names.add(name(result))
    return report


def merged(reports):
    """One report with every result of all reports, each with its lowest times."""
    results = {}
    for report in reports:
        if report['machine'] != reports[0]['machine']:
            raise Damaged(f'reports of different machines: {reports[0]["machine"]}; {report["machine"]}')
        for result in report['results']:
            best = results.setdefault(name(result), dict(result))
            for figure in ('value', 'reference_value'):
                if figure in result:
                    best[figure] = min(best[figure], result[figure])
            if 'ratio' in result:
                best['ratio'] = float(f'{best["value"] / best["reference_value"]:.6g}')
    return {'machine': reports[0]['machine'], 'results': list(results.values())}


def text(report):
    """The report as JSON, a line for each result."""
    lines = ',\n  '.join(json.dumps(result) for result in report['results'])
    return f'{{"machine": {json.dumps(report["machine"])},\n "results": [\n  {lines}\n]}}\n'
